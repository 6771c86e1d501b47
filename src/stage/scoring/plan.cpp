// Cutting a job into micro-batches.
#include "stage/scoring/plan.h"

#include <algorithm>

#include "kernels/error.h"

namespace lfm2 {

SampleRange replica_samples(const SampleOffsets& offsets, int64_t replicas, int64_t replica) {
  const int64_t samples = offsets.samples();
  if (samples < replicas)
    throw Error(ExitCode::kUsage,
                fmt::format("--replicas {} for {} samples: expected at most one a sample", replicas, samples));
  // Where replica r begins: at the sample nearest to its share of the tokens, leaving a sample at least for each.
  const auto begin = [&](int64_t r) {
    const int64_t share = offsets.back() / replicas * r + offsets.back() % replicas * r / replicas;
    return r == replicas ? samples : std::clamp<int64_t>(offsets.first_behind(share), r, samples - (replicas - r));
  };
  return {begin(replica), begin(replica + 1) - begin(replica)};
}

BatchPlan make_plan(const SampleOffsets& offsets, SampleRange range, int64_t micro_batch, int64_t target_tokens) {
  expect(range.count >= 1 && range.first >= 0 && range.first + range.count <= offsets.samples(),
         "make_plan: no samples");
  BatchPlan plan;
  plan.job_offsets = &offsets;
  plan.first_sample = range.first;
  plan.first_token = offsets[range.first];
  plan.samples = range.count;
  plan.tokens = offsets[range.first + range.count] - plan.first_token;
  MicroBatch item;
  const auto close_item = [&] {
    plan.item_offsets.push_back(item.first_sample + item.samples);
    plan.max_tokens = std::max(plan.max_tokens, item.tokens);
    plan.max_samples = std::max(plan.max_samples, item.samples);
    item = {item.first_sample + item.samples, 0, item.first_token + item.tokens, 0};
  };
  for (int64_t sample = 0; sample < plan.samples; ++sample) {
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
