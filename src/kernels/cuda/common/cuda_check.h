// The one place that turns a failed CUDA or cuBLASLt call into an Error. For code below src/kernels/cuda and for
// channels.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

namespace lfm2 {

// These throw Error(kSoftware) with the call, CUDA's message, file and line. They are defined in cuda_check.cpp, so
// that the kernels' sources do not include fmt.
[[noreturn]] void throw_cuda_error(cudaError_t error, const char* call, const char* file, int line);
[[noreturn]] void throw_cublas_error(cublasStatus_t status, const char* call, const char* file, int line);

// Call this after a launch. Throws if CUDA refused it, for example because it asks for too much shared memory or
// because there is no code for this GPU.
void check_launch(const char* kernel);

}  // namespace lfm2

#define CUDA_CHECK(call)                                                                                        \
  do {                                                                                                          \
    const cudaError_t cuda_check_error = (call);                                                                \
    if (cuda_check_error != cudaSuccess) ::lfm2::throw_cuda_error(cuda_check_error, #call, __FILE__, __LINE__); \
  } while (false)

#define CUBLAS_CHECK(call)                                                        \
  do {                                                                            \
    const cublasStatus_t cublas_check_status = (call);                            \
    if (cublas_check_status != CUBLAS_STATUS_SUCCESS)                             \
      ::lfm2::throw_cublas_error(cublas_check_status, #call, __FILE__, __LINE__); \
  } while (false)
