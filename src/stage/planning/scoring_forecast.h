// Predicts the time and the memory of a scoring job on a machine whose costs are known, without the machine.
#pragma once

#include <vector>

#include "stage/planning/machine_costs.h"
#include "stage/scoring/planning/replay.h"
#include "stage/scoring/planning/scoring_demand.h"

namespace lfm2 {

inline constexpr int64_t kMaxTimeline = 4096;  // computations of a forecast's timeline

// The ranks of a job on hosts that are as the measured one.
struct JobRanks {
  int64_t stages = 1, replicas = 1;
  int64_t count() const { return stages * replicas; }
};

struct ScoringForecast {
  ScoringDemand demand = {};
  std::vector<LayerRange> cut = {};  // [virtual stages]
  BatchPlan batches = {};            // of all replicas
  double seconds = 0;
  std::vector<double> busy = {};            // [stages] of a replica
  uint64_t memory_bytes = 0;                // of the rank that needs most
  bool fits = true;                         // into the memory of its GPU or, together, of its host
  std::vector<ReplayedSpan> timeline = {};  // of a replica; of a long job, its beginning

  PipelineShape shape() const { return {.stages = demand.stages, .pieces = std::ssize(cut) / demand.stages}; }
  double idle_share() const;  // of the stages, until the last is done
};

// The seconds of a transfer between neighbouring ranks of a pipeline. Over several hosts the slowest kind of link
// counts. Error(kData) if the file has no link.
StageTime transfer_cost(const MachineCosts& machine, const ModelConfig& config, JobRanks ranks);
// The assumptions that a forecast for these ranks needs, a sentence each.
std::vector<std::string> assumptions(const MachineCosts& machine, JobRanks ranks);

// What a run on this machine would ask of its pipelines; the caller sets `length`, `results` and the layout's options.
ScoringDemand demand_on(const MachineCosts& machine, const ModelConfig& config, JobRanks ranks);

// `samples` samples of demand.length tokens, planned as a run plans them.
ScoringForecast forecast_scoring(const MachineCosts& machine, const ModelConfig& config, const ScoringDemand& demand,
                                 int64_t samples);

// For each number of replicas that divides `ranks`: the fastest of the plans that options choose. `base` has the job;
// its layout is not used. The fastest that fits comes first.
std::vector<ScoringForecast> forecast_layouts(const MachineCosts& machine, const ModelConfig& config,
                                              const ScoringDemand& base, int64_t samples, int64_t ranks);

// The options of a run that make this plan: "--replicas 2 --virtual-stages 0".
std::string layout_options(const ScoringDemand& demand);

}  // namespace lfm2
