// Reads the reference cases under tests/golden. Used by every test that compares with transformers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lfm2::test {

struct Array {
  std::vector<int64_t> dims;
  std::vector<double> values;  // double holds fp32, fp64 and int32 exactly
  int64_t dim(size_t axis) const { return dims.at(axis); }
};

std::filesystem::path golden_dir();
Array read_array(const std::filesystem::path& file, const std::string& dataset);
Array golden_operator(const std::string& dataset);  // of golden/operators.h5

}  // namespace lfm2::test
