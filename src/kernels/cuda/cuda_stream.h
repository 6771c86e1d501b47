// A CUDA stream and its events behind the Stream and Event interfaces. CudaBackend computes on one; channels make
// others and reach the native handles.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>

#include "kernels/backend.h"

namespace lfm2 {

class CudaEvent final : public Event {
 public:
  CudaEvent();
  ~CudaEvent() override;
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  bool done() const override;
  cudaEvent_t native() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// submit() runs the work at once, on the calling thread; the work enqueues kernels. What it throws goes to the caller;
// a failure on the GPU comes out of check() or of the next call that notices it. Used by one thread.
class CudaStream final : public Stream {
 public:
  explicit CudaStream(int priority = 0);  // lower numbers go first; CUDA clamps to what the device has
  ~CudaStream() override;                 // drains
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  void submit(std::function<void()> work) override;
  void record(Event& event) override;  // a CudaEvent
  void wait(Event& event) override;
  void check() override;
  double busy_seconds() override;
  void drain() noexcept override;

  cudaStream_t native() const { return stream_; }

 private:
  // One piece of submitted work between two timing events.
  struct Interval {
    cudaEvent_t start = nullptr, end = nullptr;
  };
  static constexpr size_t kIntervals = 64;

  void collect_finished();

  cudaStream_t stream_ = nullptr;
  std::array<Interval, kIntervals> intervals_;
  size_t first_ = 0, count_ = 0;  // those not yet added to busy_seconds_
  double busy_seconds_ = 0;
};

// A CUDA event of an Event that must be one.
CudaEvent& as_cuda_event(Event& event);

}  // namespace lfm2
