// Streams as queues of work that may not be done at the first look. For one thread only.
#include "fake_cuda.h"

#include <cublasLt.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <thread>
#include <vector>

struct CUstream_st {
  std::deque<std::function<bool()>> work;
};

struct CUevent_st {
  uint64_t recorded = 0, completed = 0;
  double seconds = 0;
};

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::vector<cudaStream_t>& streams() {
  static std::vector<cudaStream_t> all;
  return all;
}

// Runs all streams as far as they get, since one stream may wait for another.
void advance() {
  for (bool moved = true; moved;) {
    moved = false;
    for (cudaStream_t stream : streams())
      while (!stream->work.empty() && stream->work.front()()) {
        stream->work.pop_front();
        moved = true;
      }
  }
}

template <class Done>
void wait_until(const Done& done) {
  for (advance(); !done(); advance()) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

}  // namespace

void enqueue_fake_work(cudaStream_t stream, std::function<bool()> work) { stream->work.push_back(std::move(work)); }

extern "C" {

cudaError_t cudaGetLastError(void) { return cudaSuccess; }
cudaError_t cudaPeekAtLastError(void) { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorFake"; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the fake CUDA"; }
const char* cublasLtGetStatusName(cublasStatus_t) { return "CUBLAS_STATUS_FAKE"; }

cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  *lowest = 0;
  *highest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int, int) {
  *stream = new CUstream_st;
  streams().push_back(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  std::erase(streams(), stream);
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  advance();
  return stream->work.empty() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  wait_until([&] { return stream->work.empty(); });
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  stream->work.push_back([event, ticket = event->recorded] { return event->completed >= ticket; });
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new CUevent_st;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) { return cudaEventCreate(event); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  stream->work.push_back([event, ticket = ++event->recorded] {
    event->completed = ticket;
    event->seconds = now();
    return true;
  });
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  advance();
  return event->completed >= event->recorded ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  wait_until([&] { return event->completed >= event->recorded; });
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  *milliseconds = static_cast<float>((end->seconds - start->seconds) * 1e3);
  return cudaSuccess;
}

}  // extern "C"
