// Shards of the golden cases, made by weights-tools before the tests run (a ctest fixture).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lfm2::test {

// The shards of a golden case, split into `stages` files: for 1 and for most_stages().
std::filesystem::path golden_shards(const std::string& golden_case, int stages);
inline const std::vector<std::string> kGoldenCases = {"tiny-moe",   "mini-24",   "tiny-bf16",
                                                      "tiny-dense", "tiny-lfm3", "kjv-moe"};
// Cases in fp8 by other libraries, and those that weights-tools quantised, CASE.SCHEME-MODULES.
inline const std::vector<std::string> kFp8Cases = {"tiny-fp8-channel", "tiny-fp8-block", "tiny-fp8-hf"};
inline const std::vector<std::string> kQuantizedCases = {"kjv-moe.channel-experts", "kjv-moe.channel-all",
                                                         "kjv-moe.block-experts", "kjv-moe.block-all"};
// Those whose bits whole runs compare: both schemes, activations in bf16 and in fp32, at least four layers.
inline const std::vector<std::string> kFp8BitsCases = {"tiny-fp8-channel", "mini-24.block-all"};
std::vector<std::string> with_fp8_bits(std::vector<std::string> cases);  // adds them

int most_stages(const std::string& golden_case);
// The case with the inputs: "mini-24" of "mini-24.block-all".
std::string golden_source(const std::string& golden_case);
// What --dtype the case's bits are compared in: fp8 of those in fp8.
std::vector<std::string> golden_dtypes(const std::string& golden_case);
std::string test_name(std::string golden_case);  // with letters that a test's name may have

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
