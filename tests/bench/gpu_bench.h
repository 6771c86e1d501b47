// Times calls on a GPU over operands of random numbers, and prints a line for each, beside the peak and the copy speed
// that were found in the same run.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/common/cuda_check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/tensor_memory.h"

namespace lfm2 {

class Bench {
 public:
  Bench() : backend_(make_cuda_backend(0)), stream_(dynamic_cast<CudaStream&>(backend_->compute()).native()) {
    std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    noise_.resize(size_t{1} << 22);
    for (float& x : noise_) x = normal(generator);
    CUDA_CHECK(cudaEventCreate(&start_));
    CUDA_CHECK(cudaEventCreate(&end_));
  }
  ~Bench() {
    static_cast<void>(cudaEventDestroy(start_));
    static_cast<void>(cudaEventDestroy(end_));
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  Ops& ops() { return backend_->ops(); }
  Backend& backend() { return *backend_; }

  Tensor random(DType dtype, std::initializer_list<int64_t> shape) {
    const Tensor tensor = empty(dtype, shape);
    const auto piece = static_cast<int64_t>(noise_.size());
    for (int64_t first = 0; first < tensor.numel(); first += piece)
      backend_->upload(tensor, first, DType::kF32, noise_.data(), std::min(piece, tensor.numel() - first));
    return tensor;
  }
  Tensor integers(const std::vector<int32_t>& values) {
    const Tensor tensor = empty(DType::kI32, {static_cast<int64_t>(values.size())});
    backend_->upload(tensor, 0, DType::kI32, values.data(), tensor.numel());
    return tensor;
  }
  Tensor empty(DType dtype, std::initializer_list<int64_t> shape) {
    if (!memory_) memory_.emplace(*backend_);
    return memory_->allocate(dtype, shape);
  }
  void forget() {
    backend_->compute().drain();
    memory_.reset();
  }

  // The median of several runs, each of which is the mean of some calls. work(i) gets the number of the call.
  double seconds(const std::function<void(int)>& work) {
    constexpr int kRuns = 7;
    int calls = 4, number = 0;
    std::vector<double> times;
    for (int run = -1; run < kRuns; ++run) {  // the first run warms up, and finds how many calls fill 2 ms
      CUDA_CHECK(cudaEventRecord(start_, stream_));
      for (int i = 0; i < calls; ++i) work(number++);
      CUDA_CHECK(cudaEventRecord(end_, stream_));
      CUDA_CHECK(cudaEventSynchronize(end_));
      float milliseconds = 0;
      CUDA_CHECK(cudaEventElapsedTime(&milliseconds, start_, end_));
      const double each = static_cast<double>(milliseconds) * 1e-3 / calls;
      if (run >= 0) times.push_back(each);
      if (run < 0) calls = std::clamp(static_cast<int>(2e-3 / each), 2, 200);
    }
    std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
    return times[kRuns / 2];
  }

  void print(const std::string& what, double seconds, double flops, double bytes) const {
    std::printf("%-44s %9.1f us", what.c_str(), seconds * 1e6);
    if (flops > 0) std::printf("  %6.1f TFLOP/s", flops / seconds * 1e-12);
    if (flops > 0 && peak_ > 0) std::printf("  %5.1f %% of peak", 100 * flops / seconds / peak_);
    if (bytes > 0) std::printf("  %6.0f GB/s", bytes / seconds * 1e-9);
    if (bytes > 0 && copy_ > 0) std::printf("  %5.1f %% of a copy", 100 * bytes / seconds / copy_);
    std::printf("\n");
    std::fflush(stdout);
    if (!json_.is_open()) return;
    json_ << fmt::format("{{\"bench\": \"{}\", \"seconds\": {:.9f}", what, seconds);
    if (flops > 0 && peak_ > 0) json_ << fmt::format(", \"share\": {:.4f}", flops / seconds / peak_);
    if (bytes > 0 && copy_ > 0) json_ << fmt::format(", \"share\": {:.4f}", bytes / seconds / copy_);
    json_ << "}\n";
  }
  void set_peak(double flops) { peak_ = flops; }
  void set_copy(double bytes_per_second) { copy_ = bytes_per_second; }
  void write_json(const char* path) { json_.open(path, std::ios::app); }

 private:
  std::unique_ptr<Backend> backend_;
  cudaStream_t stream_;
  std::vector<float> noise_;
  std::optional<TensorMemory> memory_;
  cudaEvent_t start_ = nullptr, end_ = nullptr;
  double peak_ = 0, copy_ = 0;
  mutable std::ofstream json_;
};

}  // namespace lfm2
