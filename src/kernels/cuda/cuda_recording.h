// A CUDA graph that implements the Recording interface.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

#include "kernels/backend.h"

namespace lfm2 {

class CudaRecording final : public Recording {
 public:
  // Captures what `work` enqueues on `stream`.
  CudaRecording(cudaStream_t stream, const std::function<void()>& work);
  CudaRecording(const CudaRecording&) = delete;
  CudaRecording& operator=(const CudaRecording&) = delete;
  ~CudaRecording() override;

  void replay() override;

 private:
  cudaStream_t stream_;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace lfm2
