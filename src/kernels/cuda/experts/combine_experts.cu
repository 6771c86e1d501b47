// combine_experts: adds the experts' rows, times their weights, to the residual.
#include "kernels/cuda/experts/combine_experts.cuh"

namespace lfm2 {

namespace {

// - operands: y [tokens top_k, hidden] and residual [tokens, hidden] of type T, rows [tokens, top_k] int32, weights
//   [tokens, top_k] fp32.
// - block: one token.
// - thread: octets of its residual, blockDim.x apart.
// - alignment: `vector`: octets_on_16_bytes(); otherwise any.
template <class T, bool vector>
__global__ void __launch_bounds__(kMaxPartials, sizeof(T) == 4 ? 3 : 4)
    combine_experts_kernel(CombineExpertsArgs args) {
  pdl_trigger();
  const int64_t token = blockIdx.x, hidden = args.hidden;
  T* residual = static_cast<T*>(args.residual) + token * hidden;
  const Choices choices = first_choices(args, token);
  for (int64_t c = threadIdx.x * kOctet; c < hidden; c += blockDim.x * kOctet)
    store_packed(residual + c, combined_experts<T, vector>(args, choices, token, c), hidden - c, vector);
}

}  // namespace

void launch_combine_experts(cudaStream_t stream, const CombineExpertsArgs& args, DType act) {
  if (args.tokens == 0 || args.hidden == 0) return;
  with_device_type(act, [&](auto zero) {
    using T = decltype(zero);
    launch_dependent("combine_experts_kernel",
                     octets_on_16_bytes(args) ? combine_experts_kernel<T, true> : combine_experts_kernel<T, false>,
                     {args.tokens, row_threads(ceil_divide(args.hidden, kOctet))}, stream, args);
  });
}

}  // namespace lfm2
