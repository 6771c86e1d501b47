// The GPU under test, and copies of host tensors on it, between guard areas. Used by every test of the CUDA backend.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/backend.h"
#include "support/ops_under_test.h"

namespace lfm2::test {

// Made by the first test that uses it, released by main. Where there is no GPU, main ends before that.
Backend& gpu();

// A copy of a host tensor on the GPU, with bytes 0xff around it: reading too far gives NaN, and fetch() notices writing
// too far.
class DeviceTensor {
 public:
  explicit DeviceTensor(const HostTensor& host) : view_(host.view()) {
    const std::vector<std::byte> guard(kGuard, std::byte{0xff});
    memory_ = gpu().allocate(view_.bytes() + 2 * kGuard);
    view_.data = memory_.data() + kGuard;
    put(0, guard.data(), kGuard);
    put(kGuard, host->data, view_.bytes());
    put(kGuard + view_.bytes(), guard.data(), kGuard);
  }

  operator const Tensor&() const { return view_; }
  const Tensor* operator->() const { return &view_; }

  // Waits for the GPU and copies the elements back.
  void fetch(const HostTensor& into) const {
    std::vector<std::byte> bytes(view_.bytes() + 2 * kGuard);
    gpu().copy_to_host(bytes.data(), raw(0, bytes.size()));
    gpu().compute().drain();
    gpu().compute().check();
    const auto is_guard = [](std::byte b) { return b == std::byte{0xff}; };
    EXPECT_TRUE(std::all_of(bytes.begin(), bytes.begin() + kGuard, is_guard)) << "written before the tensor";
    EXPECT_TRUE(std::all_of(bytes.end() - kGuard, bytes.end(), is_guard)) << "written behind the tensor";
    ASSERT_EQ(into->bytes(), view_.bytes());
    if (view_.bytes() > 0) std::memcpy(into->data, bytes.data() + kGuard, view_.bytes());
  }

 private:
  static constexpr std::ptrdiff_t kGuard = 256;

  Tensor raw(size_t first, size_t bytes) const {
    return Tensor(memory_.data() + first, DType::kF8, {static_cast<int64_t>(bytes)});
  }
  void put(size_t first, const std::byte* source, size_t bytes) {
    if (bytes == 0) return;
    const Tensor target = raw(first, bytes);
    gpu().upload(target, 0, DType::kF8, source, target.numel());
  }

  Buffer memory_;
  Tensor view_;
};

inline void on_gpu(const std::function<void(Ops&)>& work) {
  gpu().compute().submit([&] { work(gpu().ops()); });
}

// The GPU's operators, for the cases that both backends must pass.
class GpuUnderTest : public OpsUnderTest {
 public:
  std::string name() const override { return "gpu"; }
  double units(double, double gpu) const override { return gpu; }
  // Tensor cores cut off instead of rounding, so every step of 16 may lose a unit in the same direction. A chain of
  // fused multiply-adds rounds at each of k steps in either direction; four standard deviations are allowed.
  double product_units(DType act, int64_t k) const override {
    const auto steps = static_cast<double>(k);
    return (act == DType::kF32 ? 4 * std::sqrt(steps) : 2 * steps / 16) + 16;
  }

 private:
  void run_on(const std::vector<const HostTensor*>& hosts,
              const std::function<void(Ops&, const std::vector<Tensor>&)>& call) override {
    std::vector<DeviceTensor> devices;
    for (const HostTensor* host : hosts) devices.emplace_back(*host);
    on_gpu([&](Ops& ops) { call(ops, {devices.begin(), devices.end()}); });
    for (size_t i = 0; i < hosts.size(); ++i) devices[i].fetch(*hosts[i]);
  }
};

// Samples of the given lengths, back to back, on the host and on the GPU.
struct PackedSamples {
  explicit PackedSamples(const std::vector<int64_t>& lengths) {
    starts.push_back(0);
    for (const int64_t length : lengths) {
      for (int64_t i = 0; i < length; ++i) places.push_back(static_cast<double>(i));
      starts.push_back(static_cast<double>(places.size()));
      longest = std::max(longest, length);
    }
    upload();
  }
  // To be called after a change of `places`.
  void upload() {
    const auto tokens = static_cast<int64_t>(places.size()), count = static_cast<int64_t>(starts.size());
    host_positions = std::make_unique<HostTensor>(DType::kI32, std::initializer_list<int64_t>{tokens});
    host_offsets = std::make_unique<HostTensor>(DType::kI32, std::initializer_list<int64_t>{count});
    host_positions->fill(places);
    host_offsets->fill(starts);
    device_positions = std::make_unique<DeviceTensor>(*host_positions);
    device_offsets = std::make_unique<DeviceTensor>(*host_offsets);
    device = {*device_positions, *device_offsets, tokens, count - 1, longest};
  }
  int64_t tokens() const { return static_cast<int64_t>(places.size()); }

  std::vector<double> places, starts;
  int64_t longest = 0;
  std::unique_ptr<HostTensor> host_positions, host_offsets;
  std::unique_ptr<DeviceTensor> device_positions, device_offsets;
  Batch device;
};

}  // namespace lfm2::test
