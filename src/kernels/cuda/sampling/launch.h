// The launchers of the kernels in this folder (common/launchers.h). What they compute is defined in kernels/ops.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/sampling.h"

namespace lfm2 {

void launch_top_log_probs(cudaStream_t stream, const float* logits, int64_t rows, int64_t vocab, int64_t k,
                          int32_t* ids, float* log_probs);

void launch_target_log_probs(cudaStream_t stream, const float* logits, const int32_t* targets, int64_t rows,
                             int64_t vocab, float* log_probs, int32_t* is_greedy);

struct CountTokensArgs {
  const int32_t* ids;        // [tokens]
  const int32_t* positions;  // [tokens]
  const int32_t* offsets;    // [sequences + 1]
  const int32_t* keepers;    // [sequences, 2]
  int32_t* counts;           // [slots, vocab]
  int64_t sequences, vocab;
};
void launch_count_tokens(cudaStream_t stream, const CountTokensArgs& args);

struct AdjustLogitsArgs {
  const float* logits;        // [rows, vocab]
  const int32_t* draws;       // [rows, 2]
  const SamplingRule* rules;  // [rows]
  const int32_t* slots;       // [rows]
  const int32_t* counts;      // [slots, vocab]; null: no rule counts
  const LogitEdit* edits;     // [slots, max_edits]; null: no rule has any
  const int32_t* ids;         // [any]: the drafts that rows count
  const int32_t* drafted;     // [rows, 2]: the first of a row's drafts in ids, and the end of them; null: none
  const uint32_t* masks;      // [rows, mask_words(vocab)]; null: no rule is constrained
  float* out;                 // [rows, vocab]
  int64_t rows, vocab, max_edits;
};
void launch_adjust_logits(cudaStream_t stream, const AdjustLogitsArgs& args);

struct SampleArgs {
  const float* logits;        // [rows, vocab]
  const float* adjusted;      // [rows, vocab]; null: no rule adjusts
  const int32_t* draws;       // [rows, 2]
  const SamplingRule* rules;  // [rows]
  int32_t* ids;               // [rows]
  float* log_probs;           // [rows]
  int64_t rows, vocab;
};
void launch_sample(cudaStream_t stream, const SampleArgs& args);

}  // namespace lfm2
