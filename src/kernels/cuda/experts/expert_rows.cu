// combine_experts: the experts' rows come together in the residual, and the norm after it in the same pass. One block a
// token.
#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/rows/row_types.cuh"

namespace lfm2 {

namespace {

constexpr int kChoices = 4;  // whose rows a thread has in flight

// The new residual of a token's octet, rounded to its type.
template <class T, bool vector>
__device__ Packed<T> combined(const CombineExpertsArgs& args, int64_t token, int64_t c) {
  const int64_t hidden = args.hidden, count = hidden - c;
  const auto* residual = static_cast<const T*>(args.residual) + token * hidden + c;
  const int32_t* rows = args.rows + token * args.top_k;
  const float* weights = args.weights + token * args.top_k;
  const Packed<T> old_bits = load_packed(residual, count, vector);
  Octet sum = {};
  for (int first = 0; first < args.top_k; first += kChoices) {
    Packed<T> y[kChoices];
    float weight[kChoices];
#pragma unroll
    for (int j = 0; j < kChoices; ++j)
      if (first + j < args.top_k) {
        weight[j] = weights[first + j];
        y[j] = load_packed(static_cast<const T*>(args.y) + rows[first + j] * hidden + c, count, vector);
      }
#pragma unroll
    for (int j = 0; j < kChoices; ++j)
      if (first + j < args.top_k) {
        const Octet x = unpack(y[j]);
#pragma unroll
        for (int i = 0; i < kOctet; ++i) sum.v[i] += weight[j] * x.v[i];
      }
  }
  const Octet old = unpack(old_bits);
#pragma unroll
  for (int i = 0; i < kOctet; ++i) sum.v[i] += old.v[i];
  return pack<T>(sum);
}

// With a norm: of the rounded residual, as rms_norm computes it.
template <class T, bool vector>
__global__ void __launch_bounds__(kMostPartials, sizeof(T) == 4 ? 3 : 4)
    combine_experts_kernel(CombineExpertsArgs args) {
  const int64_t token = blockIdx.x, hidden = args.hidden, first = threadIdx.x * kOctet;
  T* residual = static_cast<T*>(args.residual) + token * hidden;
  wait_for_previous();
  let_next_start();
  Packed<T> elements = {};
  float squares = 0;
  for (int64_t c = first; c < hidden; c += blockDim.x * kOctet) {
    elements = combined<T, vector>(args, token, c);
    store_packed(residual + c, elements, hidden - c, vector);
    squares = add_squares(squares, unpack(elements));
  }
  if (args.normed == nullptr) return;
  const bool once = blockDim.x * kOctet >= hidden;  // a thread had one octet, and still holds it
  Octet scale = {};
  if (once && first < hidden) scale = load_octet(args.norm_weight, first, hidden - first, vector);
  const float factor = rms_factor(block_squares(squares), hidden, args.eps);
  T* target = static_cast<T*>(args.normed) + token * hidden;
  for (int64_t c = first; c < hidden; c += blockDim.x * kOctet) {
    if (!once) {
      elements = load_packed(residual + c, hidden - c, vector);
      scale = load_octet(args.norm_weight, c, hidden - c, vector);
    }
    store_packed(target + c, pack<T>(scaled(unpack(elements), factor, scale)), hidden - c, vector);
  }
}

}  // namespace

void launch_combine_experts(cudaStream_t stream, const CombineExpertsArgs& args, DType act) {
  if (args.tokens == 0 || args.hidden == 0) return;
  const bool vector = args.hidden % kOctet == 0 && on_16_bytes(args.y) && on_16_bytes(args.residual) &&
                      on_16_bytes(args.normed) && on_16_bytes(args.norm_weight.data);
  with_device_type(act, [&](auto zero) {
    using T = decltype(zero);
    launch_dependent("combine_experts_kernel",
                     vector ? combine_experts_kernel<T, true> : combine_experts_kernel<T, false>,
                     {static_cast<unsigned>(args.tokens), row_threads(ceil_divide(args.hidden, kOctet))}, stream, args);
  });
}

}  // namespace lfm2
