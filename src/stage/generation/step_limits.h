// The sizes of a generation's steps that follow from the job, before memory and drafts are considered. A run and
// weights-tools plan share them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "stage/generation/scheduler.h"

namespace lfm2 {

// With more sequences than these, a step takes longer in proportion, so the time for each sequence falls no further.
inline constexpr int64_t kCudaSequencesInStep = 1024, kCpuSequencesInStep = 512;
// Prompt tokens in a step. If there is one stage and no client waits for single tokens, this is the number at which the
// experts' products reach their full speed. Several stages and live requests use smaller steps.
inline constexpr int64_t kCudaPromptTokens = 2048, kCudaPromptTokensAlone = 8192, kCpuPromptTokens = 128;

struct StepDemand {
  int64_t stages = 1;
  bool cuda = false, live = false;  // live: clients wait for single tokens
  int64_t micro_batch = 0;          // sequences of a step; 0: chosen
  int64_t max_sequences = 0;        // at a time; 0: chosen
  int64_t prompt_tokens = 0;        // of a step; 0: chosen
};

// The most sequences that are generated at a time.
inline int64_t sequences_at_a_time(const StepDemand& demand) {
  const int64_t in_step = demand.cuda ? kCudaSequencesInStep : kCpuSequencesInStep;
  return demand.max_sequences > 0 ? demand.max_sequences : in_step * demand.stages;
}

// Sets what `sequences` prompts with `tokens` tokens in all need: slots, and the limits of a step.
inline void set_limits(const StepDemand& demand, int64_t sequences, int64_t tokens, ScheduleLimits& limits) {
  limits.steps_in_flight = demand.stages;
  limits.caches.slots = std::max<int64_t>(1, std::min(sequences, sequences_at_a_time(demand)));
  limits.max_sequences = (limits.caches.slots + demand.stages - 1) / demand.stages;
  if (demand.micro_batch > 0) limits.max_sequences = std::min(limits.max_sequences, demand.micro_batch);
  const int64_t on_cuda = demand.stages == 1 && !demand.live ? kCudaPromptTokensAlone : kCudaPromptTokens;
  const int64_t chosen = demand.cuda ? on_cuda : kCpuPromptTokens;
  // There are no tokens if all lines are answered with errors.
  limits.prompt_tokens =
      std::min(std::max<int64_t>(1, tokens), demand.prompt_tokens > 0 ? demand.prompt_tokens : chosen);
}

// The most pages, at most `wanted`, of caches that take at most `room` bytes. bytes_of(pages) grows with the pages.
template <class Bytes>
int64_t fitting_pages(int64_t wanted, double room, const Bytes& bytes_of) {
  int64_t fitting = 0;
  for (int64_t too_many = wanted + 1; fitting + 1 < too_many;) {
    const int64_t middle = fitting + (too_many - fitting) / 2;
    (static_cast<double>(bytes_of(middle)) <= room ? fitting : too_many) = middle;
  }
  return fitting;
}

}  // namespace lfm2
