#include "stage/generation/generation_plan.h"

#include <algorithm>

namespace lfm2 {

int64_t GenerationPlan::tail_rows(const ModelConfig& config, LayerRange layers) const {
  if (!prunes_tokens(config, layers)) return 0;
  return std::min(max_tokens(), limits.max_sequences * tail_length(config) + limits.draft_rows);
}

size_t GenerationPlan::array_bytes() const {
  const int64_t tokens = max_tokens(), sequences = limits.max_rows();
  BatchSizes largest;
  largest.positions = largest.sequence_of = tokens;
  largest.tails = {.rows = tokens, .positions = tokens, .offsets = sequences + 1, .sequence_of = tokens};
  largest.offsets = sequences + 1;
  largest.states = largest.keepers = largest.draws = 2 * sequences;
  largest.last_rows = largest.draw_slots = sequences;
  if (limits.caches.max_drafts > 0) {
    largest.here = sequences;
    largest.drafted = 2 * sequences;
  }
  largest.draw_rules = sequences * kRuleWords;
  largest.scored_rows = largest.targets = max_scored();
  largest.hidden_rows = max_hidden();
  largest.page_table = sequences * table_width();
  if (limits.caches.window > 0) largest.window_table = largest.page_table;
  return largest.bytes(tokens);
}

uint64_t GenerationPlan::tail_bytes(const ModelConfig& config, LayerRange layers, DType compute) const {
  return kBuffers * Tensor(nullptr, compute, {tail_rows(config, layers), config.hidden}).bytes();
}

uint64_t GenerationPlan::prefix_bytes() const {
  if (!counts || (!limits.caches.keeps_prefixes && limits.caches.max_drafts == 0)) return 0;
  const int64_t prefixes = limits.caches.keeps_prefixes ? std::max(longest, limits.counted_prefixes) : 0;
  const int64_t tokens = prefixes + limits.max_sequences * limits.caches.max_drafts;
  BatchSizes largest;
  largest.positions = tokens;
  largest.offsets = limits.max_sequences + 1;
  largest.keepers = 2 * limits.max_sequences;
  return largest.bytes(tokens);
}

uint64_t GenerationPlan::adjustment_bytes(int64_t vocab) const {
  const auto rows = static_cast<uint64_t>(std::min(limits.max_rows(), kHeadRows));
  const auto slots = static_cast<uint64_t>(limits.caches.slots), columns = static_cast<uint64_t>(vocab);
  const auto masks = static_cast<uint64_t>(kBuffers * limits.max_rows() * mask_words(vocab)) * sizeof(uint32_t);
  return (adjusts() ? rows * columns * sizeof(float) : 0) + (constrained ? masks : 0) +
         (counts ? slots * columns * sizeof(int32_t) : 0) + slots * static_cast<uint64_t>(edits) * sizeof(LogitEdit) +
         prefix_bytes();
}

}  // namespace lfm2
