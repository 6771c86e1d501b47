// insert_drawn: inserts tokens that were drawn on the device into the input of the next step.
#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/common/device_types.cuh"
#include "kernels/cuda/rows/launch.h"

namespace lfm2 {

namespace {

constexpr int kThreads = 256;

// - operands: ids [tokens] int32, changed in place, drawn [draws] int32.
// - block: kThreads tokens.
// - thread: one token.
// - alignment: any.
__global__ void __launch_bounds__(kThreads)
    insert_drawn_kernel(int32_t* ids, int64_t tokens, const int32_t* drawn, int64_t draws) {
  pdl_trigger();
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  pdl_wait();
  if (token >= tokens) return;
  const int64_t draw = -1 - static_cast<int64_t>(ids[token]);
  device_expect(draw < draws);
  if (draw >= 0) ids[token] = drawn[draw];
}

}  // namespace

void launch_insert_drawn(cudaStream_t stream, int32_t* ids, int64_t tokens, const int32_t* drawn, int64_t draws) {
  if (tokens == 0) return;
  launch_dependent("insert_drawn_kernel", insert_drawn_kernel, {ceil_divide(tokens, kThreads), kThreads}, stream, ids,
                   tokens, drawn, draws);
}

}  // namespace lfm2
