// A CUDA stream and its events behind the Stream and Event interfaces. CudaBackend computes on one; channels make
// others and reach the native handles.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

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

// A timing event between two of which the time can be told.
class CudaTimingEvent {
 public:
  CudaTimingEvent();
  ~CudaTimingEvent();
  CudaTimingEvent(const CudaTimingEvent&) = delete;
  CudaTimingEvent& operator=(const CudaTimingEvent&) = delete;

  bool done() const;  // never recorded counts as done
  void wait() const;  // blocks the calling thread
  cudaEvent_t native() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Places a GPU's events on the host's steady clock. CUDA tells times between events as a float of milliseconds, which
// is coarse after minutes: from time to time a newer event takes the anchor's place.
class CudaClock {
 public:
  explicit CudaClock(cudaStream_t stream);          // waits for the stream, once
  double seconds_of(const CudaTimingEvent& event);  // of one that is done

 private:
  cudaStream_t stream_;
  std::array<CudaTimingEvent, 2> anchors_;
  size_t anchor_ = 0;
  bool next_recorded_ = false;
  double anchor_seconds_ = 0;
};

// submit() runs the work at once, on the calling thread; the work enqueues kernels. What it throws goes to the caller;
// a failure on the GPU comes out of check() or of the next call that notices it. Used by one thread.
class CudaStream final : public Stream {
 public:
  explicit CudaStream(int priority = 0);  // lower numbers go first; CUDA clamps to what the device has
  ~CudaStream() override;                 // drains
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  void submit(std::function<void()> work, int64_t tag = kUntagged) override;
  void record(Event& event) override;  // a CudaEvent
  void wait(Event& event) override;
  void check() override;
  std::vector<Span> take_finished() override;
  void drain() noexcept override;

  cudaStream_t native() const { return stream_; }
  CudaClock& clock() { return *clock_; }

 private:
  // One piece of submitted work between two timing events.
  struct Interval {
    CudaTimingEvent start, end;
    int64_t tag = 0;
  };
  static constexpr size_t kIntervals = 64;

  void collect_finished();

  cudaStream_t stream_ = nullptr;
  std::array<Interval, kIntervals> intervals_;
  size_t first_ = 0, count_ = 0;  // those not yet in finished_
  std::vector<Span> finished_;
  std::optional<CudaClock> clock_;
};

// A CUDA event of an Event that must be one.
CudaEvent& as_cuda_event(Event& event);

}  // namespace lfm2
