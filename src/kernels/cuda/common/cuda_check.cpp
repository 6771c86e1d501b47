// Composes the messages of CUDA errors, and throws them.
#include "kernels/cuda/common/cuda_check.h"

#include <fmt/format.h>

#include "base/error.h"

namespace lfm2 {

namespace {

// Whether the context is lost after this error. Then work on the GPU failed, not the call that reports it.
bool is_fault(cudaError_t error) {
  return error == cudaErrorIllegalAddress || error == cudaErrorLaunchFailure || error == cudaErrorLaunchTimeout ||
         error == cudaErrorAssert || error == cudaErrorHardwareStackError || error == cudaErrorIllegalInstruction ||
         error == cudaErrorMisalignedAddress || error == cudaErrorInvalidAddressSpace || error == cudaErrorInvalidPc ||
         error == cudaErrorECCUncorrectable || error == cudaErrorNvlinkUncorrectable || error == cudaErrorUnknown;
}

std::string text_of(cudaError_t error, const std::string& what) {
  return fmt::format("{}{}: {} ({})", is_fault(error) ? "a GPU fault: " : "", what, cudaGetErrorString(error),
                     cudaGetErrorName(error));
}

}  // namespace

void throw_cuda_error(cudaError_t error, const char* call, const char* file, int line) {
  throw Error(ExitCode::kSoftware, text_of(error, fmt::format("{} failed", call)), file, line);
}

void throw_cublas_error(cublasStatus_t status, const char* call, const char* file, int line) {
  throw Error(ExitCode::kSoftware, fmt::format("{} failed: {}", call, cublasLtGetStatusName(status)), file, line);
}

void check_launch(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess)
    throw Error(ExitCode::kSoftware, text_of(error, fmt::format("launch of {} failed", kernel)));
}

}  // namespace lfm2
