// The operators that adjust logits before tokens are drawn: count_tokens and adjust_logits.
#include <algorithm>
#include <limits>
#include <span>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/sampling.h"

namespace lfm2 {

void CpuOps::count_tokens(const Tensor& ids, const Tensor& keepers, const Batch& batch, const Tensor& counts) {
  expect(ids.dtype == DType::kI32 && ids.numel() == batch.tokens && keepers.dtype == DType::kI32 &&
             keepers.numel() == 2 * batch.sequences && counts.dtype == DType::kI32 && counts.rank == 2,
         "count_tokens: shapes");
  const int64_t vocab = counts.dim(1);
  const auto* positions = batch.positions.as<const int32_t>();
  const auto* offsets = batch.offsets.as<const int32_t>();
  pool_.parallel_for(static_cast<size_t>(batch.sequences), [&](size_t sequence, size_t) {
    const int32_t slot = keepers.as<const int32_t>()[2 * sequence];
    const int32_t prompt = keepers.as<const int32_t>()[2 * sequence + 1];
    if (slot < 0) return;
    expect(slot < counts.dim(0), "count_tokens: a slot without counts");
    int32_t* own = counts.as<int32_t>() + slot * vocab;
    for (int32_t token = offsets[sequence]; token < offsets[sequence + 1]; ++token) {
      if (positions[token] == 0) std::fill(own, own + vocab, 0);
      const int32_t id = ids.as<const int32_t>()[token];
      expect(id >= 0 && id < vocab, "count_tokens: a token beyond the vocabulary");
      if (positions[token] < prompt)
        own[id] |= kInPrompt;
      else
        own[id] += kInText;
    }
  });
}

namespace {

// The drafts that a row counts; none for row -1.
std::span<const int32_t> drafts_of(const Adjustments& adjustments, int64_t row) {
  if (row < 0 || !adjustments.drafted) return {};
  const auto* span = adjustments.drafted.as<const int32_t>() + 2 * row;
  expect(0 <= span[0] && span[0] <= span[1] && span[1] <= adjustments.ids.numel(), "adjust_logits: drafts");
  return {adjustments.ids.as<const int32_t>() + span[0], adjustments.ids.as<const int32_t>() + span[1]};
}

}  // namespace

void CpuOps::adjust_logits(const Tensor& logits, const Tensor& draws, const Tensor& rules, const Tensor& slots,
                           const Adjustments& adjustments, const Tensor& masks, const Tensor& out) {
  const int64_t rows = logits.dim(0), vocab = logits.dim(1);
  expect(logits.dtype == DType::kF32 && out.dtype == DType::kF32 && out.dims == logits.dims &&
             draws.dtype == DType::kI32 && draws.numel() == 2 * rows && rules.dtype == DType::kI32 &&
             rules.numel() == kRuleWords * rows && slots.dtype == DType::kI32 && slots.numel() == rows &&
             (!masks || (masks.dtype == DType::kI32 && masks.numel() == rows * mask_words(vocab))) &&
             (!adjustments.drafted || adjustments.drafted.numel() == 2 * rows),
         "adjust_logits: shapes");
  pool_.parallel_for(static_cast<size_t>(rows), [&](size_t row, size_t) {
    const SamplingRule& rule = rules.as<const SamplingRule>()[row];
    const int32_t place = draws.as<const int32_t>()[2 * row + 1];
    if (!rule.adjusts(place)) return;
    const int64_t slot = slots.as<const int32_t>()[row];
    expect(!rule.counts() || (adjustments.counts && slot < adjustments.counts.dim(0)),
           "adjust_logits: a rule counts tokens, and nothing is counted");
    const int32_t* counts = rule.counts() ? adjustments.counts.as<const int32_t>() + slot * vocab : nullptr;
    const float* logit = logits.as<const float>() + static_cast<int64_t>(row) * vocab;
    float* adjusted = out.as<float>() + static_cast<int64_t>(row) * vocab;
    const auto drafts = drafts_of(adjustments, counts != nullptr ? static_cast<int64_t>(row) : -1);
    const auto adjust = [&](int64_t id, float value, int32_t drafted) {
      adjusted[id] = penalized(value, counts != nullptr ? counts[id] + drafted * kInText : 0, rule);
    };
    const auto times_drafted = [&](int32_t id) {
      return static_cast<int32_t>(std::count(drafts.begin(), drafts.end(), id));
    };
    for (int64_t id = 0; id < vocab; ++id) adjust(id, logit[id], 0);
    for (const int32_t id : drafts) {
      expect(id >= 0 && id < vocab, "adjust_logits: a draft beyond the vocabulary");
      adjust(id, logit[id], times_drafted(id));
    }
    const int32_t edits = rule.biases + (place < rule.min_tokens ? rule.banned : 0);
    expect(edits == 0 || (adjustments.edits && edits <= adjustments.edits.dim(1)), "adjust_logits: edits");
    const auto* edit = edits > 0 ? adjustments.edits.as<const LogitEdit>() + slot * adjustments.edits.dim(1) : nullptr;
    for (int32_t i = 0; i < rule.biases; ++i)
      adjust(edit[i].token, logit[edit[i].token] + edit[i].bias, times_drafted(edit[i].token));
    for (int32_t i = rule.biases; i < edits; ++i)  // an end of a text may be no token of the model
      if (edit[i].token < vocab) adjusted[edit[i].token] = -std::numeric_limits<float>::infinity();
    if (rule.constrained == 0) return;
    expect(static_cast<bool>(masks), "adjust_logits: a rule is constrained, and there is no mask");
    const auto* mask = masks.as<const uint32_t>() + static_cast<int64_t>(row) * mask_words(vocab);
    for (int64_t id = 0; id < vocab; ++id) adjusted[id] = masked_logit(adjusted[id], allows(mask, id));
  });
}

}  // namespace lfm2
