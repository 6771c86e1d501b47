// The time of kernels that depend on one another, without the host's part in launching them.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>

#include "kernels/cuda/common/cuda_check.h"
#include "kernels/cuda/cuda_stream.h"

namespace lfm2 {

// Records calls of some work once, and replays the recording.
class RecordedTime {
 public:
  explicit RecordedTime(Backend& backend)
      : backend_(backend), stream_(dynamic_cast<CudaStream&>(backend.compute()).native()) {
    CUDA_CHECK(cudaEventCreate(&start_));
    CUDA_CHECK(cudaEventCreate(&end_));
  }
  ~RecordedTime() {
    static_cast<void>(cudaEventDestroy(start_));
    static_cast<void>(cudaEventDestroy(end_));
  }
  RecordedTime(const RecordedTime&) = delete;
  RecordedTime& operator=(const RecordedTime&) = delete;

  // Seconds of one of work(0), ... work(calls - 1): the median of runs of them all, after one that warms up.
  double seconds(int64_t calls, const std::function<void(int64_t)>& work) const {
    const auto recording = backend_.record([&] {
      for (int64_t i = 0; i < calls; ++i) work(i);
    });
    std::array<double, 5> times{};
    for (size_t run = 0; run <= times.size(); ++run) {
      backend_.compute().submit([&] {
        CUDA_CHECK(cudaEventRecord(start_, stream_));
        recording->replay();
        CUDA_CHECK(cudaEventRecord(end_, stream_));
      });
      CUDA_CHECK(cudaEventSynchronize(end_));
      float milliseconds = 0;
      CUDA_CHECK(cudaEventElapsedTime(&milliseconds, start_, end_));
      if (run > 0) times[run - 1] = static_cast<double>(milliseconds) * 1e-3 / static_cast<double>(calls);
    }
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    return times[times.size() / 2];
  }

 private:
  Backend& backend_;
  cudaStream_t stream_;
  cudaEvent_t start_ = nullptr, end_ = nullptr;
};

}  // namespace lfm2
