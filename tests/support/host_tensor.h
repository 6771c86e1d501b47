// Tensors in host memory between guard areas, and the comparison of results with a reference. Used by the tests of
// operators.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include "kernels/sampling.h"
#include "kernels/tensor.h"

namespace lfm2::test {

// Half a unit in the last place, relative to the value: the error of one rounding to the type.
inline double rounding_unit(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 0x1p-24;
    case DType::kBf16:
      return 0x1p-8;
    case DType::kF16:
      return 0x1p-11;
    case DType::kF8:
      return 0x1p-4;
    case DType::kI32:
      return 0;
  }
  return 0;
}

// The largest error of rounding `value` to the type; fp16 has few exponents, so its error also has an absolute part.
inline double store_error(DType dtype, double value) {
  return rounding_unit(dtype) * std::fabs(value) + (dtype == DType::kF16 ? 0x1p-25 : 0x1p-149);
}

// Bytes of 0xff surround the elements. They are a NaN in every float type, so reading too far spoils the result;
// writing too far is noticed by the destructor.
class HostTensor {
 public:
  HostTensor(DType dtype, std::initializer_list<int64_t> shape) : view_(nullptr, dtype, shape) {
    bytes_.assign(view_.bytes() + 2 * kGuard, std::byte{0xff});
    view_.data = bytes_.data() + kGuard;
  }
  HostTensor(HostTensor&& other) noexcept = default;
  ~HostTensor() {
    if (bytes_.empty()) return;  // the content was moved away
    EXPECT_TRUE(std::all_of(bytes_.begin(), bytes_.begin() + kGuard, is_guard)) << "written before the tensor";
    EXPECT_TRUE(std::all_of(bytes_.end() - kGuard, bytes_.end(), is_guard)) << "written behind the tensor";
  }

  operator const Tensor&() const { return view_; }
  const Tensor& view() const { return view_; }
  const Tensor* operator->() const { return &view_; }

  size_t size() const { return static_cast<size_t>(view_.numel()); }
  double get(size_t i) const {
    switch (view_.dtype) {
      case DType::kF32:
        return static_cast<double>(view_.as<float>()[i]);
      case DType::kBf16:
        return static_cast<double>(to_float(view_.as<Bf16>()[i]));
      case DType::kF16:
        return static_cast<double>(to_float(view_.as<F16>()[i]));
      case DType::kI32:
        return view_.as<int32_t>()[i];
      case DType::kF8:
        return static_cast<double>(to_float(view_.as<F8>()[i]));
    }
    return 0;
  }
  void set(size_t i, double value) {
    switch (view_.dtype) {
      case DType::kF32:
        view_.as<float>()[i] = static_cast<float>(value);
        return;
      case DType::kBf16:
        view_.as<Bf16>()[i] = from_float<Bf16>(static_cast<float>(value));
        return;
      case DType::kF16:
        view_.as<F16>()[i] = from_float<F16>(static_cast<float>(value));
        return;
      case DType::kI32:
        view_.as<int32_t>()[i] = static_cast<int32_t>(value);
        return;
      case DType::kF8:
        view_.as<F8>()[i] = from_float<F8>(static_cast<float>(value));
        return;
    }
  }
  void fill(const std::vector<double>& values) {
    ASSERT_EQ(values.size(), size());
    for (size_t i = 0; i < values.size(); ++i) set(i, values[i]);
  }
  void fill(double value) { fill(std::vector<double>(size(), value)); }
  void fill_random(uint32_t seed, float spread = 1.0f) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal(0.0f, spread);
    for (size_t i = 0; i < size(); ++i) set(i, static_cast<double>(normal(generator)));
  }
  std::vector<double> values() const {
    std::vector<double> all(size());
    for (size_t i = 0; i < all.size(); ++i) all[i] = get(i);
    return all;
  }

 private:
  static constexpr std::ptrdiff_t kGuard = 256;
  static bool is_guard(std::byte b) { return b == std::byte{0xff}; }

  std::vector<std::byte> bytes_;
  Tensor view_;
};

inline std::string coordinates(const Tensor& shape, size_t index) {
  std::string text = "]";
  for (int axis = shape.rank - 1; axis >= 0; --axis) {
    const auto extent = static_cast<size_t>(shape.dim(axis));
    text = (axis > 0 ? ", " : "[") + std::to_string(index % extent) + text;
    index /= extent;
  }
  return text;
}

// Expects |actual - expected| <= tolerance for each element; a failure names the worst one. A NaN agrees with nothing.
inline void expect_close(const HostTensor& actual, const std::vector<double>& expected,
                         const std::vector<double>& tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  ASSERT_EQ(actual.size(), tolerance.size());
  size_t worst = 0;
  double worst_ratio = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::fabs(actual.get(i) - expected[i]);
    const double ratio = std::isnan(difference) ? HUGE_VAL : difference / std::max(tolerance[i], 0x1p-200);
    if (ratio > worst_ratio) {
      worst_ratio = ratio;
      worst = i;
    }
  }
  if (worst_ratio <= 1) return;
  ADD_FAILURE() << "at " << coordinates(actual.view(), worst) << ": " << actual.get(worst) << ", expected "
                << expected[worst] << ", tolerance " << tolerance[worst];
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() && (a.bytes() == 0 || std::memcmp(a.data, b.data, a.bytes()) == 0);
}

// The same rule for each of so many rows, as Ops::sample takes them.
inline HostTensor rules_of(const SamplingRule& rule, int64_t rows) {
  HostTensor rules(DType::kI32, {rows, kRuleWords});
  std::fill_n(rules->as<SamplingRule>(), rows, rule);
  return rules;
}

}  // namespace lfm2::test
