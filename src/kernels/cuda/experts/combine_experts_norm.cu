// combine_experts_norm: adds the experts' rows to the residual, and computes the norm after it in the same pass.
#include "kernels/cuda/experts/combine_experts.cuh"

namespace lfm2 {

namespace {

// - operands: those of combine_experts_kernel, norm_weight [hidden] of any type, normed [tokens, hidden] of type T:
//   the norm of the rounded residual, as rms_norm computes it.
// - block: one token.
// - thread: octets of its residual, blockDim.x apart; where it has one alone, that stays in registers for the norm.
// - alignment: `vector`: octets_on_16_bytes(), normed and norm_weight on 16 bytes; otherwise any.
template <class T, bool vector>
__global__ void __launch_bounds__(kMaxPartials, sizeof(T) == 4 ? 3 : 4)
    combine_experts_norm_kernel(CombineExpertsNormArgs args) {
  let_next_start();
  const int64_t token = blockIdx.x, hidden = args.combine.hidden, first = threadIdx.x * kOctet;
  T* residual = static_cast<T*>(args.combine.residual) + token * hidden;
  const bool once = blockDim.x * kOctet >= hidden;  // a thread has one octet, and holds it until the norm
  Octet scale = {};
  if (once && first < hidden) scale = load_octet(args.norm_weight, first, hidden - first, vector);
  const Choices choices = first_choices(args.combine, token);
  Packed<T> elements = {};
  float squares = 0;
  for (int64_t c = first; c < hidden; c += blockDim.x * kOctet) {
    elements = combined_experts<T, vector>(args.combine, choices, token, c);
    store_packed(residual + c, elements, hidden - c, vector);
    squares = add_squares(squares, unpack(elements));
  }
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

void launch_combine_experts_norm(cudaStream_t stream, const CombineExpertsNormArgs& args, DType act) {
  const CombineExpertsArgs& combine = args.combine;
  if (combine.tokens == 0 || combine.hidden == 0) return;
  const bool vector = octets_on_16_bytes(combine) && on_16_bytes(args.normed) && on_16_bytes(args.norm_weight.data);
  with_device_type(act, [&](auto zero) {
    using T = decltype(zero);
    launch_dependent("combine_experts_norm_kernel",
                     vector ? combine_experts_norm_kernel<T, true> : combine_experts_norm_kernel<T, false>,
                     {static_cast<unsigned>(combine.tokens), row_threads(ceil_divide(combine.hidden, kOctet))}, stream,
                     args);
  });
}

}  // namespace lfm2
