// Reads the reference cases under tests/golden. Used by every test that compares with transformers.
#pragma once

#include <cmath>
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

// The largest difference of two lists, value by value; NaN, of which no comparison is true, where a difference is one
// or the lists are not equally long.
template <class T>
double largest_difference(const std::vector<T>& found, const std::vector<double>& expected) {
  if (found.size() != expected.size()) return std::nan("");
  double largest = 0;
  for (size_t i = 0; i < found.size() && !std::isnan(largest); ++i) {
    const double distance = std::abs(static_cast<double>(found[i]) - expected[i]);
    if (!(distance <= largest)) largest = distance;
  }
  return largest;
}

}  // namespace lfm2::test
