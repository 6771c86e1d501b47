// Shards of the golden cases, made by weights-tools before the tests run (a ctest fixture).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lfm2::test {

// The shards of a golden case, split into `stages` files; there are splits for 1 and 4.
std::filesystem::path golden_shards(const std::string& golden_case, int stages);
// Those in fp8 are split for 1 and 2.
inline const std::vector<std::string> kFp8Cases = {"tiny-fp8-channel", "tiny-fp8-block", "tiny-fp8-hf"};
inline const std::vector<std::string> kGoldenCases = {"tiny-moe", "mini-24", "tiny-bf16", "tiny-dense", "kjv-moe"};

// A folder for the files of a test, empty at the start and removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder();
  std::filesystem::path path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace lfm2::test
