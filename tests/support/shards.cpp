// The folder in which the fixture put the shards, and temporary folders.
#include "support/shards.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

namespace lfm2::test {

std::filesystem::path golden_shards(const std::string& golden_case, int stages) {
  return std::filesystem::path(LFM2_TEST_SHARDS_DIR) / (golden_case + "-" + std::to_string(stages));
}

std::vector<std::string> with_fp8_bits(std::vector<std::string> cases) {
  cases.insert(cases.end(), kFp8BitsCases.begin(), kFp8BitsCases.end());
  return cases;
}

int most_stages(const std::string& golden_case) { return golden_case.starts_with("tiny-fp8") ? 2 : 4; }

std::string golden_source(const std::string& golden_case) { return golden_case.substr(0, golden_case.find('.')); }

std::vector<std::string> golden_dtypes(const std::string& golden_case) {
  const bool fp8 = golden_case.starts_with("tiny-fp8") || golden_case.find('.') != std::string::npos;
  return fp8 ? std::vector<std::string>{"fp8"} : std::vector<std::string>{"fp32", "bf16", "fp16"};
}

std::string test_name(std::string golden_case) {
  std::replace_if(
      golden_case.begin(), golden_case.end(), [](char letter) { return letter == '-' || letter == '.'; }, '_');
  return golden_case;
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
