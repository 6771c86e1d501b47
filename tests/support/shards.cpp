// The folder in which the fixture put the shards, and temporary folders.
#include "support/shards.h"

#include <unistd.h>

#include <cstdlib>
#include <stdexcept>

namespace lfm2::test {

std::filesystem::path golden_shards(const std::string& golden_case, int stages) {
  return std::filesystem::path(LFM2_TEST_SHARDS_DIR) / (golden_case + "-" + std::to_string(stages));
}

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "lfm2-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace lfm2::test
