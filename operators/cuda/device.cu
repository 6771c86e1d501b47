// Devices, memory and copies for callers that do not link CUDA, and the texts of CUDA's errors.
#include <cuda_runtime_api.h>

#include "operators/cuda/launch.cuh"
#include "operators/gpu.h"

namespace lfm2::operators::gpu {

namespace {

// Returns the call's own error, and clears it so that no other code finds it.
Status checked(cudaError_t error) {
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());
  return status_of(error);
}

}  // namespace

int device_count() {
  int count = 0;
  return ok(checked(cudaGetDeviceCount(&count))) ? count : 0;
}

Status allocate(int device, size_t bytes, void** memory) {
  const OnDevice on_device(device);
  STATUS_CHECK(on_device.status());
  return checked(cudaMalloc(memory, bytes));
}

Status release(int device, void* memory) {
  const OnDevice on_device(device);
  STATUS_CHECK(on_device.status());
  return checked(cudaFree(memory));
}

Status copy(int device, void* target, const void* source, size_t bytes, void* stream) {
  const OnDevice on_device(device);
  STATUS_CHECK(on_device.status());
  STATUS_CHECK(checked(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream))));
  return checked(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)));
}

Status synchronize(int device, void* stream) {
  const OnDevice on_device(device);
  STATUS_CHECK(on_device.status());
  return checked(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)));
}

Status device_of_pointer(const void* memory, int& device) {
  device = kCpu;
  if (device_count() == 0) return Status::kOk;
  cudaPointerAttributes attributes{};
  STATUS_CHECK(checked(cudaPointerGetAttributes(&attributes, memory)));
  if (attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged) device = attributes.device;
  return Status::kOk;
}

const char* error_text(int cuda_error) { return cudaGetErrorString(static_cast<cudaError_t>(cuda_error)); }

}  // namespace lfm2::operators::gpu
