// The scales of one fp8 weight, the mapping of elements to scales, and scaled values.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "stage/model/quantization.h"

namespace lfm2 {

struct Fp8Scales {
  std::vector<float> values;  // [rows] or [blocks of rows, blocks of columns]
  uint64_t rows = 1;          // number of rows that share scales
  uint64_t columns = 0;       // of the weight
  uint64_t group = 0;         // number of columns that share a scale

  // The scales of a weight of this shape, all zero.
  Fp8Scales(const std::vector<uint64_t>& weight, Quantization::Scheme scheme) : columns(weight.at(1)) {
    const bool block = scheme == Quantization::Scheme::kBlock;
    rows = block ? kScaleBlock : 1;
    group = block ? kScaleBlock : columns;
    values.resize(((weight.at(0) - 1) / rows + 1) * groups());
  }
  uint64_t groups() const { return (columns - 1) / group + 1; }  // scales of a row

  // Cuts the elements [begin, begin + count) of the weight into runs with one scale, and calls f(scale, first, count)
  // for each; `first` counts from `begin`.
  template <class F>
  void for_each_run(uint64_t begin, size_t count, F&& f) const {
    for (size_t done = 0; done < count;) {
      const uint64_t row = (begin + done) / columns, column = (begin + done) % columns;
      const uint64_t end = std::min((column / group + 1) * group, columns);
      const size_t run = std::min<uint64_t>(end - column, count - done);
      f(row / rows * groups() + column / group, done, run);
      done += run;
    }
  }

  double value(uint64_t element, std::byte fp8) const {
    const uint64_t scale = element / columns / rows * groups() + element % columns / group;
    return static_cast<double>(values[scale]) * static_cast<double>(to_float(F8{std::to_integer<uint8_t>(fp8)}));
  }
};

// The number as fp32, rounded to odd. A second rounding, to a type with a shorter mantissa, then equals a single
// rounding of the number.
inline float round_to_odd(double x) {
  const float rounded = static_cast<float>(x);
  if (static_cast<double>(rounded) == x || std::isnan(x)) return rounded;
  const bool away = std::fabs(static_cast<double>(rounded)) > std::fabs(x);
  return std::bit_cast<float>((std::bit_cast<uint32_t>(rounded) - (away ? 1u : 0u)) | 1u);
}
template <class T>
T round_once(double x) {
  return from_float<T>(round_to_odd(x));
}
template <>
inline float round_once<float>(double x) {
  return static_cast<float>(x);
}

// Writes the scaled values of the elements `fp8`, which begin at element `begin` of the weight, each rounded once.
// Returns the index of the first that became infinite, else fp8.size().
template <class T>
size_t dequantize(const Fp8Scales& scales, uint64_t begin, std::span<const std::byte> fp8, T* out) {
  size_t infinite = fp8.size();
  scales.for_each_run(begin, fp8.size(), [&](size_t scale_index, size_t first, size_t count) {
    const double scale = static_cast<double>(scales.values[scale_index]);
    for (size_t i = first; i < first + count; ++i)
      out[i] = round_once<T>(scale * static_cast<double>(to_float(F8{std::to_integer<uint8_t>(fp8[i])})));
    if (infinite < fp8.size() || std::isfinite(to_float(round_once<T>(scale * double{kMaxF8})))) return;
    for (size_t i = first; i < first + count && infinite == fp8.size(); ++i)
      if (std::isinf(to_float(out[i]))) infinite = i;
  });
  return infinite;
}

}  // namespace lfm2
