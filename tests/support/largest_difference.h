// How far results are from a reference. Used by the tests that compare with transformers.
#pragma once

#include <cmath>
#include <string>
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

// How far results in bf16 are off: by the largest difference, but of tiny-lfm3, whose 120 tokens make that the chance
// of one token, by the root of the mean square.
template <class T>
double bf16_difference(const std::string& golden_case, const std::vector<T>& found,
                       const std::vector<double>& expected) {
  if (golden_case != "tiny-lfm3" || found.size() != expected.size()) return largest_difference(found, expected);
  double sum = 0;
  for (size_t i = 0; i < found.size(); ++i) sum += std::pow(static_cast<double>(found[i]) - expected[i], 2);
  return std::sqrt(sum / static_cast<double>(found.size()));
}

}  // namespace lfm2::test
