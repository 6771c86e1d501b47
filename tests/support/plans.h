// Plans over all samples of a job.
#pragma once

#include "stage/scoring/plan.h"

namespace lfm2::test {

inline BatchPlan plan_of(const SampleOffsets& offsets, int64_t micro_batch, int64_t target_tokens) {
  return make_plan(offsets, {0, offsets.samples()}, micro_batch, target_tokens);
}

}  // namespace lfm2::test
