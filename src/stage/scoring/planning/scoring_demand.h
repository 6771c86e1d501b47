// What a scoring job asks of its pipeline, and the plan that follows from it and from measured costs. A run and
// weights-tools plan share these functions, so that the plan that is predicted is the run's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "stage/io/results.h"
#include "stage/scoring/planning/choose.h"

namespace lfm2 {

struct ScoringDemand {
  int64_t length = 1;  // mean tokens of a sample
  int64_t stages = 1, replicas = 1;
  int64_t micro_batch = 0;                // samples; 0: chosen
  int64_t virtual_stages = 1;             // pieces of each rank; 0: chosen
  std::vector<double> layer_counts = {};  // layers of each virtual stage; empty: equal, or balanced
  bool balance = false;
  ResultKind results = {};
  DType compute = DType::kF32;
  bool cuda = false;
  StageTime transfer = {};  // estimated
  int64_t pipelines_on_host = 1;
  int result_threads = 1;         // of each pipeline
  std::vector<int> devices = {};  // as in PipelineCosts

  // Whether the cut follows from costs. Otherwise it is given or equal.
  bool chooses_cut() const { return stages > 1 && (virtual_stages == 0 || balance); }
  // Whether the micro-batch is chosen again for the loaded stages.
  bool chooses_again() const { return cuda && micro_batch == 0; }
};

// The most threads that hash and write results: enough to keep up with a GPU, because filling fresh memory limits each
// thread. A slice of logits has 64 rows, so that each thread takes three of them.
inline constexpr int kMaxResultThreads = 22;
// The threads for results of a pipeline's last rank, with its `share` of the processors. With GPUs one processor is
// left to the rank's own thread.
inline int result_thread_count(bool cuda, int share) {
  return std::min(cuda ? std::max(1, share - 1) : share, kMaxResultThreads);
}

// The two sizes of micro-batches that a run times before its layers are loaded.
TimedSizes timed_sizes(bool cuda);

// How micro-batches of up to `tokens` tokens are cut.
MicroBatches::Size micro_batch_size(const ModelConfig& config, const ScoringDemand& demand, int64_t tokens);

// The choice that the job leaves, for `tokens` tokens in a pipeline and micro-batches of up to `max_target` tokens.
PipelineJob pipeline_job(const ModelConfig& config, const ScoringDemand& demand, int64_t tokens, int64_t max_target);
inline int64_t max_first_target(bool cuda) { return cuda ? kMaxMeasuredTarget : kMaxCpuTarget; }

// Rows of logits for each token.
double rows_of_tokens(const ScoringDemand& demand);
// The costs of the job's micro-batches, from those of blocks.
BlockCosts costs_of_job(const ModelConfig& config, const ScoringDemand& demand, const BlockCosts& measured);

// The cut and the micro-batch of a job whose cut does not follow from costs.
PipelineChoice given_choice(const ModelConfig& config, const ScoringDemand& demand, int64_t tokens);

// Chooses the micro-batch again (ScoringDemand::chooses_again()) by the costs of virtual stages.
PipelineChoice choose_again(const ModelConfig& config, const ScoringDemand& demand, PipelineCosts costs, int64_t tokens,
                            int64_t max_target);

}  // namespace lfm2
