// What a stage's layers cost, measured on the device that computes them.
#pragma once

#include <cstdint>
#include <optional>

#include "base/words.h"
#include "kernels/backend.h"
#include "stage/model/stage.h"

namespace lfm2 {

// A micro-batch takes fixed + per_token · tokens seconds.
struct StageTime {
  double fixed = 0, per_token = 0;
  double seconds(double tokens) const { return fixed + per_token * tokens; }
};
void for_each_field(MaybeConst<StageTime> auto& time, const auto& each) {  // see base/words.h
  each(time.fixed);
  each(time.per_token);
}

// The two sizes of micro-batch, in tokens, that are timed.
struct TimedSizes {
  int64_t small = 1024, large = 4096;
};

// The job's samples. Of those longer than a timed micro-batch, a part from the middle is timed, over the caches.
struct TimedSamples {
  int64_t length = 1;
  bool last_positions = false;  // nothing else is wanted: the stage with the last attention layer cuts the tails
  // Set for generation: in its steps each token is the next one of another sequence, of which so many are cached.
  std::optional<int64_t> cached = {};
};

// From the seconds for two sizes.
StageTime line_through(TimedSizes sizes, double small, double large);

// Times the stage's layers on random hidden states of two sizes. A stage behind the cut is timed on all tokens, too.
// Leaves nothing allocated.
StageTime measure_stage_time(Backend& backend, const Stage& stage, DType compute, TimedSamples samples,
                             TimedSizes sizes = {});
// Times the final norm and LM head of the last stage on rows instead of tokens.
StageTime measure_head_time(Backend& backend, const Stage& stage, DType compute);

}  // namespace lfm2
