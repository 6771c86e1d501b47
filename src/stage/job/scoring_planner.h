// Chooses how a scoring job cuts layers and micro-batches, from estimated and measured costs.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "stage/job/job.h"
#include "stage/scoring/plan.h"
#include "stage/scoring/planning/scoring_demand.h"
#include "stage/scoring/windows.h"

namespace lfm2 {

class ScoringPlanner {
 public:
  explicit ScoringPlanner(JobFrame& job) : job_(job) {}
  JobPlan plan();  // before the weights are loaded; collective
  // Chooses the size of micro-batch again, by timing the loaded stages; collective.
  void measure_and_replan(const std::vector<LayerRange>& cut);
  const BatchPlan& batches() const { return plan_; }
  const MicroBatches& micro_batches() const { return *micro_batches_; }  // rank 0

 private:
  BlockCosts block_costs();                 // measured; collective
  void choose_plan(int64_t target_tokens);  // rank 0 chooses for all; collective
  TimedSamples timed_samples() const;
  double tail_share(LayerRange layers) const;
  int64_t largest_target(const std::vector<LayerRange>& cut) const;
  JobPlan sizes_of(const std::vector<LayerRange>& cut) const;
  int64_t share_of_replica(int64_t tokens) const;

  JobFrame& job_;
  ScoringDemand demand_;                       // its length is that of the samples or windows in the stages
  std::optional<Windows> windows_;             // on rank 0, with --stride if a sample is longer than the model
  std::optional<MicroBatches> micro_batches_;  // on rank 0
  BatchPlan plan_;
};

}  // namespace lfm2
