// gate_heads: multiplies the heads that attention has written by their gates, in place.
#include "kernels/cuda/attention/launch.h"
#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/common/device_types.cuh"

namespace lfm2 {

namespace {

constexpr int kThreads = 256;

// - operands: args.qkv [tokens, columns], whose last `heads` columns are the gates; out [tokens, heads head_dim],
//   changed in place; all of type T.
// - block: kThreads octets of out, side by side; an octet lies within one head, whose last one may be cut off.
// - thread: one octet.
// - alignment: `vector`: head_dim in octets, out on 16 bytes; otherwise any.
template <class T>
__global__ void __launch_bounds__(kThreads) gate_heads_kernel(GateHeadsArgs args, int head_octets, bool vector) {
  pdl_trigger();
  const int64_t octet = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, head = octet / head_octets;
  const int64_t token = head / args.heads;
  const int first = static_cast<int>(octet - head * head_octets) * kOctet;
  pdl_wait();
  if (token >= args.tokens) return;
  const T gate = static_cast<const T*>(args.qkv)[(token + 1) * args.columns - args.heads + (head - token * args.heads)];
  const float factor = 1.0f / (1.0f + expf(-to_f32(gate)));
  T* const out = static_cast<T*>(args.out) + head * args.head_dim + first;
  Octet x = load_octet(out, args.head_dim - first, vector);
#pragma unroll
  for (int i = 0; i < kOctet; ++i) x.v[i] *= factor;
  store_octet(out, x, args.head_dim - first, vector);
}

}  // namespace

void launch_gate_heads(cudaStream_t stream, const GateHeadsArgs& args, DType act) {
  if (args.tokens == 0) return;
  const auto head_octets = static_cast<int>(ceil_divide(args.head_dim, kOctet));
  const bool vector = args.head_dim % kOctet == 0 && on_16_bytes(args.out);
  with_device_type(act, [&](auto zero) {
    launch_dependent("gate_heads_kernel", gate_heads_kernel<decltype(zero)>,
                     {ceil_divide(args.tokens * args.heads * head_octets, kThreads), kThreads}, stream, args,
                     head_octets, vector);
  });
}

}  // namespace lfm2
