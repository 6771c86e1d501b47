// How far results are from a reference. Used by the tests that compare with transformers.
#pragma once

#include <cmath>
#include <vector>

namespace lfm2::test {

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
