// Cutting a job into micro-batches.
#include "stage/plan.h"

#include <algorithm>

#include "kernels/error.h"

namespace lfm2 {

BatchPlan make_plan(std::vector<int64_t> offsets, int64_t micro_batch, int64_t target_tokens) {
  expect(offsets.size() >= 2, "make_plan: no samples");
  BatchPlan plan;
  plan.offsets = std::move(offsets);
  MicroBatch item;
  const auto close_item = [&] {
    plan.items.push_back(item);
    plan.max_tokens = std::max(plan.max_tokens, item.tokens);
    plan.max_samples = std::max(plan.max_samples, item.samples);
    item = {item.first_sample + item.samples, 0, item.first_token + item.tokens, 0};
  };
  for (int64_t sample = 0; sample < plan.samples(); ++sample) {
    const int64_t length = plan.length(sample);
    plan.max_length = std::max(plan.max_length, length);
    if (micro_batch == 0 && item.samples > 0 && item.tokens + length > target_tokens) close_item();
    ++item.samples;
    item.tokens += length;
    if (micro_batch > 0 && item.samples == micro_batch) close_item();
  }
  if (item.samples > 0) close_item();
  return plan;
}

int64_t choose_target_tokens(int64_t total_tokens, int64_t stages, int64_t largest) {
  const int64_t items = stages == 1 ? 1 : 6 * (stages - 1);
  return std::clamp<int64_t>((total_tokens + items - 1) / items, 1, largest);
}

}  // namespace lfm2
