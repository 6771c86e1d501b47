// A CUDA stream and its events, which implement Stream and Event. CudaBackend computes on one of them; channels make
// others and use the native handles.
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

// A CUDA event that records the time, so that the time between two of them can be read.
class CudaTimingEvent {
 public:
  CudaTimingEvent();
  ~CudaTimingEvent();
  CudaTimingEvent(const CudaTimingEvent&) = delete;
  CudaTimingEvent& operator=(const CudaTimingEvent&) = delete;

  bool done() const;  // an event that was never recorded counts as done
  void wait() const;  // blocks the calling thread
  cudaEvent_t native() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Places a GPU's events on the host's steady clock. CUDA returns the time between two events as a float of
// milliseconds, which is coarse after minutes, and the GPU's clock drifts from the host's by 10 us in a second. So
// times are counted from an anchor event, which follow() replaces from time to time. On an empty stream, as when a job
// starts after loading, follow() waits for the new anchor and so compares both clocks. While the stream has work, the
// new anchor is only known to lie between two times of the host.
class CudaClock {
 public:
  explicit CudaClock(cudaStream_t stream);  // waits for the stream several times
  // Call it before the events of a piece of work are recorded, and not between seconds_of() of its two.
  void follow();
  double seconds_of(const CudaTimingEvent& event) const;  // `event` must be done

 private:
  void look();  // makes an anchor and waits for it several times; for an empty stream

  cudaStream_t stream_;
  std::array<CudaTimingEvent, 2> anchors_;
  size_t anchor_ = 0;
  double anchor_seconds_ = 0;
  std::optional<double> next_earliest_;  // when the newer anchor was recorded; none until then
};

// submit() runs the work at once, on the calling thread, and the work enqueues kernels. What the work throws reaches
// the caller. check(), or the next call that notices it, throws a failure on the GPU. Only one thread may use a stream.
class CudaStream final : public Stream {
 public:
  explicit CudaStream(int priority = 0);  // lower numbers go first; clamped to what the device has
  ~CudaStream() override;                 // drains
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  void submit(std::function<void()> work, int64_t tag = kUntagged) override;
  void record(Event& event) override;  // `event` must be a CudaEvent
  void wait(Event& event) override;
  void check() override;
  std::vector<Span> pop_finished() override;
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
  size_t first_ = 0, count_ = 0;  // the intervals that are not yet in finished_
  std::vector<Span> finished_;
  std::optional<CudaClock> clock_;
};

// `event` as the CudaEvent that it must be.
CudaEvent& as_cuda_event(Event& event);

}  // namespace lfm2
