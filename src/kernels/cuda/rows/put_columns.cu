// put_columns: copies a matrix into columns of a wider one.
#include "kernels/cuda/common/cuda_check.h"
#include "kernels/cuda/rows/launch.h"

namespace lfm2 {

void launch_put_columns(cudaStream_t stream, const void* x, int64_t rows, int64_t row_bytes, void* out,
                        int64_t out_row_bytes) {
  if (rows == 0 || row_bytes == 0) return;
  CUDA_CHECK(cudaMemcpy2DAsync(out, static_cast<size_t>(out_row_bytes), x, static_cast<size_t>(row_bytes),
                               static_cast<size_t>(row_bytes), static_cast<size_t>(rows), cudaMemcpyDeviceToDevice,
                               stream));
}

}  // namespace lfm2
