// combine_experts_norm: adds the experts' rows to the residual, and computes the norm after it in the same pass.
#include "kernels/cuda/experts/combine_experts.cuh"
#include "kernels/cuda/rows/fp8_rows.cuh"
#include "kernels/cuda/rows/launch.h"

namespace lfm2 {

namespace {

// - operands: those of combine_experts_kernel, norm_weight [hidden] of any type, normed [tokens, hidden] of type T: the
//   norm of the rounded residual, as rms_norm computes it. If each thread has only one octet, args.rounded may receive
//   the norm instead, rounded once more.
// - block: one token.
// - thread: octets of its residual, blockDim.x apart; a single one stays in registers for the norm.
// - alignment: `vector`: octets_on_16_bytes(), normed and norm_weight on 16 bytes; otherwise any.
template <class T, bool vector>
__global__ void __launch_bounds__(kMaxPartials, sizeof(T) == 4 ? 3 : 4)
    combine_experts_norm_kernel(CombineExpertsNormArgs args) {
  pdl_trigger();
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
  if (args.rounded.elements != nullptr) {
    const Octet normed = unpack(pack<T>(scaled(unpack(elements), factor, scale)));
    const float largest = args.rounded.by_group ? 0 : max_over_block(largest_magnitude(normed));
    return store_rounded(args.rounded, token, first, hidden, normed, largest, vector);
  }
  T* target = static_cast<T*>(args.normed) + token * hidden;
  for (int64_t c = first; c < hidden; c += blockDim.x * kOctet) {
    if (!once) {
      elements = load_packed(residual + c, hidden - c, vector);
      scale = load_octet(args.norm_weight, c, hidden - c, vector);
    }
    store_packed(target + c, pack<T>(scaled(unpack(elements), factor, scale)), hidden - c, vector);
  }
}

// For many tokens of 16-bit types, with up to kChoices choices. A warp that has a whole token waits for no other warp,
// so that loads are always in flight.
constexpr int kRowWarps = 4, kRowsAtOnce = 2;  // slices of a token whose loads are in flight at once
constexpr int kSliceOctets = 32;
// - operands: those of combine_experts_norm_kernel.
// - block: kRowWarps tokens, one for each warp.
// - thread: every 32nd octet of its warp's token, up to kMaxTrees.
// - alignment: octets_on_16_bytes(), normed and norm_weight on 16 bytes; hidden in slices of 32 octets.
template <class T, bool rounds>
__global__ void __launch_bounds__(kRowWarps * 32, 4) combine_experts_norm_by_warps_kernel(CombineExpertsNormArgs args) {
  pdl_trigger();
  const CombineExpertsArgs& combine = args.combine;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / 32, hidden = combine.hidden;
  const int lane = threadIdx.x % 32, slices = static_cast<int>(hidden / (kSliceOctets * kOctet));
  if (token >= combine.tokens) return pdl_wait();
  const Choices choices = first_choices(combine, token);
  T* residual = static_cast<T*>(combine.residual) + token * hidden + lane * kOctet;
  Packed<T> sums[kMaxTrees];
  float squares = 0;
#pragma unroll
  for (int slice = 0; slice < kMaxTrees; slice += kRowsAtOnce) {
    Packed<T> old[kRowsAtOnce], y[kRowsAtOnce][kChoices];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i)
      if (slice + i < slices) {
        const int64_t c = (slice + i) * kSliceOctets * kOctet;
        old[i] = load_packed(residual + c, kOctet, true);
        load_chosen<T, true>(combine, choices, 0, c + lane * kOctet, y[i]);
      }
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i)
      if (slice + i < slices) {
        Octet sum = {};
        add_chosen(combine, choices, 0, y[i], sum);
        sums[slice + i] = new_residual(old[i], sum);
        forget(sums[slice + i]);
        store_packed(residual + (slice + i) * kSliceOctets * kOctet, sums[slice + i], kOctet, true);
      }
  }
#pragma unroll
  for (int slice = 0; slice < kMaxTrees; ++slice)  // the trees of row_types.cuh
    if (slice < slices) squares += warp_sum(add_squares(0, unpack(sums[slice])));
  const float factor = rms_factor(squares, hidden, args.eps);
  const auto column = [&](int slice) { return (slice * kSliceOctets + lane) * kOctet; };
  float largest = 0;
#pragma unroll
  for (int slice = 0; slice < kMaxTrees; ++slice)
    if (slice < slices) {
      const Octet scale = load_octet(args.norm_weight, column(slice), kOctet, true);
      sums[slice] = pack<T>(scaled(unpack(sums[slice]), factor, scale));
      if constexpr (rounds)
        largest = fmaxf(largest, largest_magnitude(unpack(sums[slice])));
      else
        store_packed(static_cast<T*>(args.normed) + token * hidden + column(slice), sums[slice], kOctet, true);
    }
  if constexpr (rounds) {
    largest = max_over<32>(largest);
#pragma unroll
    for (int slice = 0; slice < kMaxTrees; ++slice)
      if (slice < slices) store_rounded(args.rounded, token, column(slice), hidden, unpack(sums[slice]), largest, true);
  }
}

template <class T>
void launch_by_warps(cudaStream_t stream, const CombineExpertsNormArgs& args) {
  launch_dependent("combine_experts_norm_by_warps_kernel",
                   args.rounded.elements != nullptr ? combine_experts_norm_by_warps_kernel<T, true>
                                                    : combine_experts_norm_by_warps_kernel<T, false>,
                   {ceil_divide(args.combine.tokens, kRowWarps), kRowWarps * 32}, stream, args);
}

// This many tokens fill an SM with a warp for each.
constexpr int kManyTokens = 16;

}  // namespace

void launch_combine_experts_norm(cudaStream_t stream, const CombineExpertsNormArgs& args, DType act) {
  const CombineExpertsArgs& combine = args.combine;
  if (combine.tokens == 0 || combine.hidden == 0) return;
  const void* normed = args.rounded.elements != nullptr ? args.rounded.elements : args.normed;
  const bool vector = octets_on_16_bytes(combine) && on_16_bytes(normed) && on_16_bytes(args.norm_weight.data);
  const unsigned threads = row_threads(ceil_divide(combine.hidden, kOctet));
  if (args.rounded.elements != nullptr && threads * int64_t{kOctet} < combine.hidden) {
    launch_combine_experts(stream, combine, act);
    return launch_rms_norm(stream, combine.residual, args.norm_weight, args.eps, combine.tokens, combine.hidden,
                           nullptr, act, args.rounded);
  }
  const int64_t slice = kSliceOctets * kOctet;
  if (vector && act != DType::kF32 && combine.top_k <= kChoices && combine.hidden % slice == 0 &&
      combine.hidden <= kMaxTrees * slice &&
      combine.tokens >= int64_t{kManyTokens} * device_attribute(cudaDevAttrMultiProcessorCount))
    return with_16_bit_type(act, [&](auto zero) { launch_by_warps<decltype(zero)>(stream, args); });
  with_device_type(act, [&](auto zero) {
    using T = decltype(zero);
    launch_dependent("combine_experts_norm_kernel",
                     vector ? combine_experts_norm_kernel<T, true> : combine_experts_norm_kernel<T, false>,
                     {combine.tokens, threads}, stream, args);
  });
}

}  // namespace lfm2
