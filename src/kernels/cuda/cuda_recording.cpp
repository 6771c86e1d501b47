// Records a CUDA graph by stream capture.
#include "kernels/cuda/cuda_recording.h"

#include "kernels/cuda/common/cuda_check.h"

namespace lfm2 {

CudaRecording::CudaRecording(cudaStream_t stream, const std::function<void()>& work) : stream_(stream) {
  CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    static_cast<void>(cudaStreamEndCapture(stream, &graph));
    if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
    throw;
  }
  CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  const cudaError_t error = cudaGraphInstantiate(&executable_, graph, 0);
  static_cast<void>(cudaGraphDestroy(graph));
  CUDA_CHECK(error);
}

CudaRecording::~CudaRecording() { static_cast<void>(cudaGraphExecDestroy(executable_)); }

void CudaRecording::replay() { CUDA_CHECK(cudaGraphLaunch(executable_, stream_)); }

}  // namespace lfm2
