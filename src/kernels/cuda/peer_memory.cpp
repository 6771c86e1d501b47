// The driver's functions for flags are looked up at run time, so that nothing links against libcuda.
#include "kernels/cuda/peer_memory.h"

#include <cudaTypedefs.h>
#include <fmt/format.h>

#include <cstring>

#include "base/error.h"
#include "kernels/cuda/common/cuda_check.h"

namespace lfm2 {

namespace {

template <class Function>
Function find_function(const char* name) {
  constexpr int kSince = 11070;  // from this version of CUDA on, no setting of the driver is needed
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result{};
  CUDA_CHECK(cudaGetDriverEntryPointByVersion(name, &function, kSince, cudaEnableDefault, &result));
  expect(result == cudaDriverEntryPointSuccess && function != nullptr, "the GPU's driver has no flags for streams");
  return reinterpret_cast<Function>(function);
}

// Throws if GPUs are not peers, or processes may not share their memory.
void check_peers(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // otherwise a later check would find this error
  throw Error(ExitCode::kUnavailable, fmt::format("{} failed: {}", call, cudaGetErrorString(error)));
}

void check_driver(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  throw Error(ExitCode::kSoftware, fmt::format("{} failed: CUDA driver error {}", call, static_cast<int>(result)));
}

}  // namespace

PeerHandle peer_handle(void* allocation) {
  cudaIpcMemHandle_t handle{};
  check_peers(cudaIpcGetMemHandle(&handle, allocation), "cudaIpcGetMemHandle");
  PeerHandle bytes{};
  std::memcpy(bytes.data(), &handle, sizeof handle);
  return bytes;
}

PeerMemory::PeerMemory(const PeerHandle& handle) {
  cudaIpcMemHandle_t native{};
  std::memcpy(&native, handle.data(), sizeof native);
  check_peers(cudaIpcOpenMemHandle(&data_, native, cudaIpcMemLazyEnablePeerAccess), "cudaIpcOpenMemHandle");
}

PeerMemory::~PeerMemory() { static_cast<void>(cudaIpcCloseMemHandle(data_)); }

void write_flag(cudaStream_t stream, uint32_t* flag, uint32_t value) {
  static const auto write = find_function<PFN_cuStreamWriteValue32_v11070>("cuStreamWriteValue32");
  check_driver(write(stream, reinterpret_cast<CUdeviceptr>(flag), value, CU_STREAM_WRITE_VALUE_DEFAULT),
               "cuStreamWriteValue32");
}

void wait_for_flag(cudaStream_t stream, uint32_t* flag, uint32_t value) {
  static const auto wait = find_function<PFN_cuStreamWaitValue32_v11070>("cuStreamWaitValue32");
  check_driver(wait(stream, reinterpret_cast<CUdeviceptr>(flag), value, CU_STREAM_WAIT_VALUE_GEQ),
               "cuStreamWaitValue32");
}

}  // namespace lfm2
