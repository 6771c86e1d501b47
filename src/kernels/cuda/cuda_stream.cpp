// CUDA streams and events. Times are read only from events that are done, so reading them never waits.
#include "kernels/cuda/cuda_stream.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/cuda/common/cuda_check.h"

namespace lfm2 {

namespace {

// Whether the result is success rather than "not ready"; throws on anything else. CUDA keeps "not ready" as its last
// error, so that is cleared.
bool is_done(cudaError_t answer, const char* call) {
  if (answer == cudaSuccess) return true;
  if (answer != cudaErrorNotReady) throw_cuda_error(answer, call, __FILE__, __LINE__);
  static_cast<void>(cudaGetLastError());
  return false;
}

// The time between two events by the GPU's clock; both must be done.
double seconds_between(const CudaTimingEvent& first, const CudaTimingEvent& second) {
  float milliseconds = 0;
  CUDA_CHECK(cudaEventElapsedTime(&milliseconds, first.native(), second.native()));
  return static_cast<double>(milliseconds) * 1e-3;
}

}  // namespace

CudaEvent& as_cuda_event(Event& event) {
  auto* cuda_event = dynamic_cast<CudaEvent*>(&event);
  expect(cuda_event != nullptr, "CudaStream: an event of another backend");
  return *cuda_event;
}

CudaEvent::CudaEvent() { CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
CudaEvent::~CudaEvent() { static_cast<void>(cudaEventDestroy(event_)); }
bool CudaEvent::done() const { return is_done(cudaEventQuery(event_), "cudaEventQuery"); }

CudaTimingEvent::CudaTimingEvent() { CUDA_CHECK(cudaEventCreate(&event_)); }
CudaTimingEvent::~CudaTimingEvent() { static_cast<void>(cudaEventDestroy(event_)); }
bool CudaTimingEvent::done() const { return is_done(cudaEventQuery(event_), "work on the GPU"); }
void CudaTimingEvent::wait() const { CUDA_CHECK(cudaEventSynchronize(event_)); }

CudaClock::CudaClock(cudaStream_t stream) : stream_(stream) { look(); }

// Each event was stamped after it was recorded, and before it was seen to be done. While another process has the GPU's
// turn, a stamp comes ms after the recording but is seen at once. While others have the host's processors, stamps are
// seen late, but not all of them. So the bounds of all tries are combined, and the anchor lies close below the upper
// bound.
void CudaClock::look() {
  constexpr int kTries = 16;           // some 10 us each
  constexpr double kSeenAfter = 5e-6;  // from a stamp to when the host sees it, if nothing is in the way
  double earliest = -std::numeric_limits<double>::infinity(), latest = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kTries; ++i) {
    const CudaTimingEvent& event = anchors_[i == 0 ? anchor_ : 1 - anchor_];
    const double before = steady_seconds();
    CUDA_CHECK(cudaEventRecord(event.native(), stream_));
    while (!event.done()) {
    }
    const double seen = steady_seconds(), since = i == 0 ? 0 : seconds_between(anchors_[anchor_], event);
    earliest = std::max(earliest, before - since);
    latest = std::min(latest, seen - since);
  }
  anchor_seconds_ = std::max(earliest, latest - kSeenAfter);
  next_earliest_.reset();
}

void CudaClock::follow() {
  constexpr double kStaleSeconds = 1;  // in this time clocks drift by some 10 us; a look takes a ten-thousandth of it
  constexpr double kFarSeconds = 4;    // up to here a float resolves half a microsecond
  const double now = steady_seconds();
  if (now - anchor_seconds_ > kStaleSeconds && is_done(cudaStreamQuery(stream_), "work on the GPU")) return look();
  const CudaTimingEvent& next = anchors_[1 - anchor_];
  if (next_earliest_ && next.done()) {
    // Whatever the GPU's clock says, the event was stamped after its recording and before now.
    anchor_seconds_ = std::clamp(seconds_of(next), *next_earliest_, now);
    anchor_ = 1 - anchor_;
    next_earliest_.reset();
  } else if (!next_earliest_ && now - anchor_seconds_ > kFarSeconds) {
    CUDA_CHECK(cudaEventRecord(next.native(), stream_));
    next_earliest_ = now;
  }
}

double CudaClock::seconds_of(const CudaTimingEvent& event) const {
  return anchor_seconds_ + seconds_between(anchors_[anchor_], event);
}

CudaStream::CudaStream(int priority) {
  int lowest = 0, highest = 0;
  CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  // A non-blocking stream does not wait for the legacy default stream, which libraries may use.
  CUDA_CHECK(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, std::clamp(priority, highest, lowest)));
  clock_.emplace(stream_);
}

CudaStream::~CudaStream() {
  drain();
  static_cast<void>(cudaStreamDestroy(stream_));
}

void CudaStream::submit(std::function<void()> work, int64_t tag) {
  collect_finished();
  // All intervals are in use, because the host is far ahead of the GPU: the newest one covers this work, too.
  const bool extend = count_ == kIntervals;
  Interval& interval = intervals_[(first_ + count_ - (extend ? 1 : 0)) % kIntervals];
  if (!extend) {
    interval.tag = tag;
    CUDA_CHECK(cudaEventRecord(interval.start.native(), stream_));
  }
  work();
  CUDA_CHECK(cudaEventRecord(interval.end.native(), stream_));
  if (!extend) ++count_;
}

void CudaStream::record(Event& event) { CUDA_CHECK(cudaEventRecord(as_cuda_event(event).native(), stream_)); }

void CudaStream::wait(Event& event) { CUDA_CHECK(cudaStreamWaitEvent(stream_, as_cuda_event(event).native(), 0)); }

void CudaStream::check() {
  is_done(cudaStreamQuery(stream_), "work on the GPU");
  CUDA_CHECK(cudaPeekAtLastError());
}

void CudaStream::collect_finished() {
  clock_->follow();
  while (count_ > 0) {
    const Interval& interval = intervals_[first_];
    if (!interval.end.done()) return;
    finished_.push_back({interval.tag, clock_->seconds_of(interval.start), clock_->seconds_of(interval.end)});
    first_ = (first_ + 1) % kIntervals;
    --count_;
  }
}

std::vector<Span> CudaStream::pop_finished() {
  collect_finished();
  return std::exchange(finished_, {});
}

void CudaStream::drain() noexcept { static_cast<void>(cudaStreamSynchronize(stream_)); }

}  // namespace lfm2
