// convert: brings an array from one float type to another when weights are loaded. It is not an operator of Ops.
#include <algorithm>

#include "kernels/cuda/common/device_types.cuh"
#include "kernels/cuda/rows/launch.h"

namespace lfm2 {

namespace {

// - operands: source [count] of any type, target [count] of type T.
// - block: octets side by side; the grid strides through the array.
// - thread: octets, a grid apart.
// - alignment: `vector`: both on 16 bytes; otherwise any.
template <class T>
__global__ void convert_kernel(AnyArray source, T* target, int64_t count, bool vector) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * kOctet;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kOctet; i < count; i += step) {
    const bool whole = vector && i + kOctet <= count;
    store_octet(target + i, load_octet(source, i, count - i, whole), count - i, whole);
  }
}

}  // namespace

cudaError_t probe_kernels() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, convert_kernel<float>);
}

void launch_convert(cudaStream_t stream, AnyArray source, void* target, DType to, int64_t count) {
  if (count == 0) return;
  constexpr int kThreads = 256;
  const bool vector = on_16_bytes(source.data) && on_16_bytes(target);
  const int64_t blocks = std::min<int64_t>(ceil_divide(count, kThreads * kOctet), 65536);
  with_device_type(to, [&](auto zero) {
    using T = decltype(zero);
    convert_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(source, static_cast<T*>(target), count,
                                                                           vector);
  });
  check_launch("convert_kernel");
}

}  // namespace lfm2
