// Memory of the CPU or a GPU between guard areas, random tensors in it, and a comparison with tolerances. Used by the
// operators' tests, which run on both.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "operators/gpu.h"
#include "operators/tensor_view.h"

namespace lfm2::operators::test {

// Half a unit in the last place, relative to the value.
inline double rounding_unit(DType dtype) {
  return dtype == DType::kBf16 ? 0x1p-8 : dtype == DType::kF16 ? 0x1p-11 : 0x1p-24;
}
inline double store_error(DType dtype, double value) {
  return rounding_unit(dtype) * std::fabs(value) + (dtype == DType::kF16 ? 0x1p-25 : 0x1p-126);
}

// Elements of one dtype on a device, with bytes 0xff around them: reading too far gives NaN, and values() notices
// writing too far.
class Memory {
 public:
  Memory(int device, DType dtype, int64_t elements, int64_t shift = 0)
      : device_(device), dtype_(dtype), elements_(elements), shift_(shift) {
    bytes_.assign(static_cast<size_t>(elements) * size_bytes(dtype) + 2 * kGuard + 64, std::byte{0xff});
    if (device != kCpu) {
      EXPECT_EQ(gpu::allocate(device, bytes_.size(), &gpu_memory_), Status::kOk);
      upload();
    }
  }
  ~Memory() {
    if (gpu_memory_ != nullptr) {
      EXPECT_EQ(gpu::release(device_, gpu_memory_), Status::kOk);
    }
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  DType dtype() const { return dtype_; }
  int device() const { return device_; }
  int64_t size() const { return elements_; }
  std::byte* data() {
    return (gpu_memory_ != nullptr ? static_cast<std::byte*>(gpu_memory_) : bytes_.data()) + first();
  }

  void fill(const std::vector<double>& values) {
    ASSERT_EQ(values.size(), static_cast<size_t>(elements_));
    with_float_type(dtype_, [&](auto zero) {
      using T = decltype(zero);
      auto* to = reinterpret_cast<T*>(bytes_.data() + first());
      for (size_t i = 0; i < values.size(); ++i) to[i] = from_float<T>(static_cast<float>(values[i]));
    });
    upload();
  }
  // Waits for the device, and returns what is stored, as doubles.
  std::vector<double> values() {
    if (gpu_memory_ != nullptr) {
      EXPECT_EQ(gpu::copy(device_, bytes_.data(), gpu_memory_, bytes_.size(), nullptr), Status::kOk);
    }
    const auto is_guard = [](std::byte b) { return b == std::byte{0xff}; };
    const auto begin = bytes_.begin() + first();
    const auto end = begin + static_cast<std::ptrdiff_t>(static_cast<size_t>(elements_) * size_bytes(dtype_));
    EXPECT_TRUE(std::all_of(bytes_.begin(), begin, is_guard)) << "written before the tensor";
    EXPECT_TRUE(std::all_of(end, bytes_.end(), is_guard)) << "written past the tensor";
    std::vector<double> all(static_cast<size_t>(elements_));
    with_float_type(dtype_, [&](auto zero) {
      const auto* from = reinterpret_cast<const decltype(zero)*>(bytes_.data() + first());
      for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<double>(to_float(from[i]));
    });
    return all;
  }
  std::vector<double> fill_random(std::mt19937& generator, double low = -2, double high = 2) {
    std::uniform_real_distribution<double> uniform(low, high);
    std::vector<double> all(static_cast<size_t>(elements_));
    for (double& x : all) x = uniform(generator);
    fill(all);
    return values();  // the values after rounding
  }

 private:
  static constexpr std::ptrdiff_t kGuard = 256;
  std::ptrdiff_t first() const { return kGuard + shift_ * static_cast<std::ptrdiff_t>(size_bytes(dtype_)); }
  void upload() {
    if (gpu_memory_ != nullptr) {
      EXPECT_EQ(gpu::copy(device_, gpu_memory_, bytes_.data(), bytes_.size(), nullptr), Status::kOk);
    }
  }

  int device_;
  DType dtype_;
  int64_t elements_, shift_;
  std::vector<std::byte> bytes_;
  void* gpu_memory_ = nullptr;
};

// A tensor with memory of its own.
struct Made {
  std::shared_ptr<Memory> memory;
  TensorView view;
};

enum class Layout { kDense, kPermuted, kGaps, kBackwards };

// `shift` is the number of elements by which the memory misses its alignment.
inline Made make(int device, DType dtype, const std::vector<int64_t>& dims, Layout layout = Layout::kDense,
                 std::mt19937* generator = nullptr, int64_t shift = 0) {
  Made made;
  TensorView& view = made.view;
  view.dtype = dtype;
  view.device = device;
  view.rank = static_cast<int>(dims.size());
  std::copy(dims.begin(), dims.end(), view.dims.begin());
  std::vector<size_t> order(dims.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = order.size() - 1 - i;
  if (layout == Layout::kPermuted && generator != nullptr) std::shuffle(order.begin(), order.end(), *generator);
  int64_t step = 1, start = 0;
  for (const size_t axis : order) {
    view.strides[axis] = step;
    step *= std::max<int64_t>(1, dims[axis]);
    if (layout == Layout::kGaps && generator != nullptr) step += static_cast<int64_t>((*generator)() % 3);
    if (layout == Layout::kBackwards && generator != nullptr && (*generator)() % 2 == 0 && dims[axis] > 0) {
      start += view.strides[axis] * (dims[axis] - 1);
      view.strides[axis] = -view.strides[axis];
    }
  }
  made.memory = std::make_shared<Memory>(device, dtype, std::max<int64_t>(1, step), shift);
  view.data = made.memory->data() + start * static_cast<int64_t>(size_bytes(dtype));
  return made;
}

// The tensor's elements in row-major order, read out of what its memory holds.
inline std::vector<double> in_order(Made& made) {
  const std::vector<double> all = made.memory->values();
  const TensorView& view = made.view;
  const int64_t start =
      (static_cast<std::byte*>(view.data) - made.memory->data()) / static_cast<int64_t>(size_bytes(view.dtype));
  std::vector<double> values(static_cast<size_t>(view.numel()));
  Extents index{};
  for (size_t i = 0; i < values.size(); ++i) {
    int64_t position = 0;
    EXPECT_EQ(index_of_ordinal(view, static_cast<int64_t>(i), index), Status::kOk);
    EXPECT_EQ(position_of_index(view, index, position), Status::kOk);
    values[i] = all[static_cast<size_t>(start + position)];
  }
  return values;
}

// |actual - expected| <= tolerance; infinities and NaN must be where they are expected.
inline void expect_close(const std::vector<double>& actual, const std::vector<double>& expected,
                         const std::vector<double>& tolerance, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  size_t wrong = 0, worst = 0;
  double worst_ratio = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(expected[i]) && std::isnan(actual[i])) continue;
    if (actual[i] == expected[i]) continue;
    const double difference = std::fabs(actual[i] - expected[i]);
    if (difference <= tolerance[i]) continue;
    ++wrong;
    const double ratio = std::isfinite(difference) ? difference / tolerance[i] : HUGE_VAL;
    if (ratio >= worst_ratio) worst_ratio = ratio, worst = i;
  }
  EXPECT_EQ(wrong, 0u) << what << ": worst at " << worst << " of " << actual.size() << ": " << actual[worst]
                       << " instead of " << expected[worst] << ", allowed " << tolerance[worst];
}

// Both devices run every test; a machine without a GPU runs the first alone (main).
class OnDeviceTest : public ::testing::TestWithParam<int> {
 protected:
  int device() const { return GetParam(); }
  std::mt19937 generator{20240229};
  int64_t between(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(generator); }
  Layout any_layout() { return static_cast<Layout>(between(0, 3)); }
  DType any_dtype() { return static_cast<DType>(between(0, 2)); }
};

}  // namespace lfm2::operators::test

// Defines the test class of a family of operators, which runs on both devices.
#define ON_BOTH_DEVICES_CHECK(name)                                                                                   \
  class name : public ::lfm2::operators::test::OnDeviceTest {};                                                       \
  INSTANTIATE_TEST_SUITE_P(Cpu, name, ::testing::Values(::lfm2::operators::kCpu), [](const auto&) { return "cpu"; }); \
  INSTANTIATE_TEST_SUITE_P(Cuda, name, ::testing::Values(0), [](const auto&) { return "cuda"; })
