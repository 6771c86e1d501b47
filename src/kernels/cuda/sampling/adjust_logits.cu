// adjust_logits: biases, penalties, banned tokens and masks, as kernels/sampling.h defines them.
#include <cmath>

#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/sampling/launch.h"

namespace lfm2 {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kSpan = 8192;  // entries of a row in one block

// - operands: logits, out [rows, vocab] fp32; draws [rows, 2], slots [rows] int32; rules [rows]; counts [slots, vocab]
//   int32; edits [slots, max_edits]; ids, drafted [rows, 2]; masks [rows, mask_words(vocab)].
// - block: kSpan entries of one row, and those drafts and edits of the row whose tokens are among them; then the mask.
// - thread: entries, then drafts, then edits, kThreads apart; the edits of a row have different tokens within biases
// and
//   bans, and of equal drafts only the first is written.
// - alignment: any.
__global__ void __launch_bounds__(kThreads) adjust_logits_kernel(AdjustLogitsArgs args) {
  pdl_trigger();
  const int64_t row = blockIdx.x, first = blockIdx.y * kSpan, end = min(first + kSpan, args.vocab);
  const SamplingRule rule = args.rules[row];
  const int32_t place = args.draws[2 * row + 1];
  const int64_t slot = args.slots[row];
  const int first_draft = args.drafted == nullptr ? 0 : args.drafted[2 * row];
  const int end_draft = args.drafted == nullptr || !rule.counts() ? first_draft : args.drafted[2 * row + 1];
  pdl_wait();
  if (!rule.adjusts(place)) return;
  const int32_t* counts = rule.counts() ? args.counts + slot * args.vocab : nullptr;
  const float* logits = args.logits + row * args.vocab;
  float* out = args.out + row * args.vocab;
  const auto adjust = [&](int64_t id, float value, int drafted) {
    out[id] = penalized(value, counts != nullptr ? counts[id] + drafted * kInText : 0, rule);
  };
  const auto times_drafted = [&](int32_t id, int before) {
    int times = 0;
    for (int i = first_draft; i < before; ++i) times += args.ids[i] == id ? 1 : 0;
    return times;
  };
#pragma unroll 4
  for (int64_t id = first + threadIdx.x; id < end; id += kThreads) adjust(id, logits[id], 0);
  const LogitEdit* edits = args.edits + slot * args.max_edits;
  const auto is_here = [&](int32_t token) { return token >= first && token < end; };
  __syncthreads();
  for (int i = first_draft + static_cast<int>(threadIdx.x); i < end_draft; i += kThreads)
    if (const int32_t id = args.ids[i]; is_here(id) && times_drafted(id, i) == 0)
      adjust(id, logits[id], times_drafted(id, end_draft));
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < rule.biases; i += kThreads)
    if (const int32_t id = edits[i].token; is_here(id))
      adjust(id, logits[id] + edits[i].bias, times_drafted(id, end_draft));
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
