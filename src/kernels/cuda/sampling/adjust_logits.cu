// adjust_logits: biases, penalties, banned tokens and masks, as kernels/sampling.h defines them.
#include <cmath>

#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/sampling/launch.h"

namespace lfm2 {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kSpan = 8192;  // entries of a row in one block

// - operands: logits, out [rows, vocab] fp32; draws [rows, 2], slots [rows] int32; rules [rows]; counts [slots, vocab]
//   int32; edits [slots, max_edits]; masks [rows, mask_words(vocab)].
// - block: kSpan entries of one row, and those edits of the row whose tokens are among them; then the mask of all.
// - thread: entries, then edits, kThreads apart; the edits of a row have different tokens within biases and bans.
// - alignment: any.
__global__ void __launch_bounds__(kThreads) adjust_logits_kernel(AdjustLogitsArgs args) {
  pdl_trigger();
  const int64_t row = blockIdx.x, first = blockIdx.y * kSpan, end = min(first + kSpan, args.vocab);
  const SamplingRule rule = args.rules[row];
  const int32_t place = args.draws[2 * row + 1];
  const int64_t slot = args.slots[row];
  pdl_wait();
  if (!rule.adjusts(place)) return;
  const int32_t* counts = rule.counts() ? args.counts + slot * args.vocab : nullptr;
  const float* logits = args.logits + row * args.vocab;
  float* out = args.out + row * args.vocab;
  const auto adjust = [&](int64_t id, float value) {
    out[id] = penalized(value, counts != nullptr ? counts[id] : 0, rule);
  };
#pragma unroll 4
  for (int64_t id = first + threadIdx.x; id < end; id += kThreads) adjust(id, logits[id]);
  const LogitEdit* edits = args.edits + slot * args.max_edits;
  const auto is_here = [&](int32_t token) { return token >= first && token < end; };
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < rule.biases; i += kThreads)
    if (is_here(edits[i].token)) adjust(edits[i].token, logits[edits[i].token] + edits[i].bias);
  const int banned = place < rule.min_tokens ? rule.banned : 0;
  __syncthreads();
  for (int i = rule.biases + static_cast<int>(threadIdx.x); i < rule.biases + banned; i += kThreads)
    if (is_here(edits[i].token)) out[edits[i].token] = -INFINITY;
  if (rule.constrained == 0) return;
  __syncthreads();
  const uint32_t* mask = args.masks + row * mask_words(args.vocab);
  for (int64_t id = first + threadIdx.x; id < end; id += kThreads) out[id] = masked_logit(out[id], allows(mask, id));
}

}  // namespace

void launch_adjust_logits(cudaStream_t stream, const AdjustLogitsArgs& args) {
  if (args.rows == 0) return;
  const dim3 blocks(static_cast<unsigned>(args.rows), static_cast<unsigned>((args.vocab + kSpan - 1) / kSpan));
  launch_dependent("adjust_logits_kernel", adjust_logits_kernel, {blocks, kThreads}, stream, args);
}

}  // namespace lfm2
