// The element-wise kernels of the feed-forward: swiglu and combine_experts. One block a row.
#include "kernels/cuda/device_types.cuh"

namespace lfm2 {

namespace {

template <class T>
__global__ void swiglu_kernel(const T* gate_up, int64_t ffn, T* out, bool vector) {
  const T* gate = gate_up + blockIdx.x * 2 * ffn;
  for (int64_t c = threadIdx.x * kOctet; c < ffn; c += blockDim.x * kOctet) {
    Octet x = load_octet(gate + c, ffn - c, vector);
    const Octet up = load_octet(gate + ffn + c, ffn - c, vector);
#pragma unroll
    for (int i = 0; i < kOctet; ++i) x.v[i] = x.v[i] / (1.0f + expf(-x.v[i])) * up.v[i];
    store_octet(out + blockIdx.x * ffn + c, x, ffn - c, vector);
  }
}

template <class T>
__global__ void combine_experts_kernel(CombineExpertsArgs args, bool vector) {
  const int64_t token = blockIdx.x, hidden = args.hidden;
  const int32_t* rows = args.rows + token * args.top_k;
  const float* weights = args.weights + token * args.top_k;
  T* residual = static_cast<T*>(args.residual) + token * hidden;
  for (int64_t c = threadIdx.x * kOctet; c < hidden; c += blockDim.x * kOctet) {
    Octet sum = {};
    for (int j = 0; j < args.top_k; ++j) {
      const Octet y = load_octet(static_cast<const T*>(args.y) + rows[j] * hidden + c, hidden - c, vector);
      const float weight = weights[j];
#pragma unroll
      for (int i = 0; i < kOctet; ++i) sum.v[i] += weight * y.v[i];
    }
    const Octet old = load_octet(residual + c, hidden - c, vector);
#pragma unroll
    for (int i = 0; i < kOctet; ++i) sum.v[i] += old.v[i];
    store_octet(residual + c, sum, hidden - c, vector);
  }
}

}  // namespace

void launch_swiglu(cudaStream_t stream, const void* gate_up, int64_t rows, int64_t ffn, void* out, DType act) {
  if (rows == 0 || ffn == 0) return;
  const bool vector = ffn % kOctet == 0 && on_16_bytes(gate_up) && on_16_bytes(out);
  with_device_type(act, [&](auto zero) {
    using T = decltype(zero);
    swiglu_kernel<<<static_cast<unsigned>(rows), row_threads(ceil_divide(ffn, kOctet)), 0, stream>>>(
        static_cast<const T*>(gate_up), ffn, static_cast<T*>(out), vector);
  });
  check_launch("swiglu_kernel");
}

void launch_combine_experts(cudaStream_t stream, const CombineExpertsArgs& args, DType act) {
  if (args.tokens == 0 || args.hidden == 0) return;
  const bool vector = args.hidden % kOctet == 0 && on_16_bytes(args.y) && on_16_bytes(args.residual);
  with_device_type(act, [&](auto zero) {
    using T = decltype(zero);
    combine_experts_kernel<T>
        <<<static_cast<unsigned>(args.tokens), row_threads(ceil_divide(args.hidden, kOctet)), 0, stream>>>(args,
                                                                                                           vector);
  });
  check_launch("combine_experts_kernel");
}

}  // namespace lfm2
