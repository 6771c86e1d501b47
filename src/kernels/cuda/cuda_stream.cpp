// Streams, events, and the busy time between timing events: read when they are done, never waited for.
#include "kernels/cuda/cuda_stream.h"

#include <algorithm>

#include "kernels/cuda/cuda_check.h"

namespace lfm2 {

namespace {

// Success or not ready; throws on anything else. CUDA remembers "not ready" as the last error: that is cleared.
bool is_done(cudaError_t answer, const char* call) {
  if (answer == cudaSuccess) return true;
  if (answer != cudaErrorNotReady) throw_cuda_error(answer, call, __FILE__, __LINE__);
  static_cast<void>(cudaGetLastError());
  return false;
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

CudaStream::CudaStream(int priority) {
  int lowest = 0, highest = 0;
  CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  // Non-blocking: independent of the legacy default stream, which libraries may use.
  CUDA_CHECK(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, std::clamp(priority, highest, lowest)));
  for (Interval& interval : intervals_) {
    CUDA_CHECK(cudaEventCreate(&interval.start));
    CUDA_CHECK(cudaEventCreate(&interval.end));
  }
}

CudaStream::~CudaStream() {
  drain();
  for (const Interval& interval : intervals_) {
    static_cast<void>(cudaEventDestroy(interval.start));
    static_cast<void>(cudaEventDestroy(interval.end));
  }
  static_cast<void>(cudaStreamDestroy(stream_));
}

void CudaStream::submit(std::function<void()> work) {
  collect_finished();
  const bool extend = count_ == kIntervals;  // very far ahead of the GPU: the newest interval takes this work in too
  Interval& interval = intervals_[(first_ + count_ - (extend ? 1 : 0)) % kIntervals];
  if (!extend) CUDA_CHECK(cudaEventRecord(interval.start, stream_));
  work();
  CUDA_CHECK(cudaEventRecord(interval.end, stream_));
  if (!extend) ++count_;
}

void CudaStream::record(Event& event) { CUDA_CHECK(cudaEventRecord(as_cuda_event(event).native(), stream_)); }

void CudaStream::wait(Event& event) { CUDA_CHECK(cudaStreamWaitEvent(stream_, as_cuda_event(event).native(), 0)); }

void CudaStream::check() {
  is_done(cudaStreamQuery(stream_), "work on the GPU");
  CUDA_CHECK(cudaPeekAtLastError());
}

void CudaStream::collect_finished() {
  while (count_ > 0) {
    const Interval& interval = intervals_[first_];
    if (!is_done(cudaEventQuery(interval.end), "work on the GPU")) return;
    float milliseconds = 0;
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, interval.start, interval.end));
    busy_seconds_ += static_cast<double>(milliseconds) * 1e-3;
    first_ = (first_ + 1) % kIntervals;
    --count_;
  }
}

double CudaStream::busy_seconds() {
  collect_finished();
  return busy_seconds_;
}

void CudaStream::drain() noexcept { static_cast<void>(cudaStreamSynchronize(stream_)); }

}  // namespace lfm2
