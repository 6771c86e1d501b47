// Cutting a job into micro-batches.
#include "stage/plan.h"

#include <algorithm>

#include "kernels/error.h"

namespace lfm2 {

SampleRange replica_samples(const std::vector<int64_t>& offsets, int64_t replicas, int64_t replica) {
  const auto samples = static_cast<int64_t>(offsets.size()) - 1;
  if (samples < replicas)
    throw Error(ExitCode::kUsage,
                fmt::format("--replicas {} for {} samples: expected at most one a sample", replicas, samples));
  // Where replica r begins: at the sample nearest to its share of the tokens, leaving a sample at least for each.
  const auto begin = [&](int64_t r) {
    const int64_t share = offsets.back() / replicas * r + offsets.back() % replicas * r / replicas;
    const auto at = std::lower_bound(offsets.begin(), offsets.end(), share) - offsets.begin();
    return r == replicas ? samples : std::clamp<int64_t>(at, r, samples - (replicas - r));
  };
  return {begin(replica), begin(replica + 1) - begin(replica)};
}

BatchPlan make_plan(const std::vector<int64_t>& offsets, SampleRange range, int64_t micro_batch,
                    int64_t target_tokens) {
  expect(range.count >= 1 && range.first >= 0 && range.first + range.count < static_cast<int64_t>(offsets.size()),
         "make_plan: no samples");
  BatchPlan plan;
  plan.first_sample = range.first;
  plan.first_token = offsets[static_cast<size_t>(range.first)];
  for (int64_t sample = range.first; sample <= range.first + range.count; ++sample)
    plan.offsets.push_back(offsets[static_cast<size_t>(sample)] - plan.first_token);
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
