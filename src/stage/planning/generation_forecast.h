// Predicts the time of a generation on a machine whose costs are known: the run's own scheduler composes the steps, and
// each step takes what its rows cost.
#pragma once

#include <vector>

#include "stage/generation/step_limits.h"
#include "stage/planning/scoring_forecast.h"

namespace lfm2 {

// A job of prompts that all have `length` tokens and get `new_tokens` tokens each, without drafts.
struct GenerationDemand {
  StepDemand step = {};  // of a replica
  int64_t replicas = 1;
  int64_t sequences = 1, length = 1, new_tokens = 1;
  int64_t page_size = 256;
  std::vector<double> layer_counts = {};  // empty: equal, or balanced
  bool balance = false;
};

struct GenerationForecast {
  GenerationDemand demand = {};
  std::vector<LayerRange> cut = {};             // [stages]
  double seconds = 0, first_token_seconds = 0;  // the latter: mean from a sequence's admission to its first token
  int64_t steps = 0;                            // of a replica
  int64_t largest_step = 0;                     // sequences
  std::vector<double> busy = {};                // [stages] of a replica
  uint64_t memory_bytes = 0;                    // of the rank that needs most
  bool fits = true;
  std::vector<ReplayedSpan> timeline = {};  // of a replica, its beginning; steps are micro-batches

  double new_tokens() const { return static_cast<double>(demand.sequences * demand.new_tokens); }
  double tokens_per_second() const { return new_tokens() / seconds; }
  double idle_share() const;
};

GenerationForecast forecast_generation(const MachineCosts& machine, const ModelConfig& config,
                                       const GenerationDemand& demand);

// As forecast_layouts() of scoring: for each number of replicas, equal or balanced cuts; the fastest that fits first.
std::vector<GenerationForecast> forecast_layouts(const MachineCosts& machine, const ModelConfig& config,
                                                 const GenerationDemand& base, int64_t ranks);

std::string layout_options(const GenerationDemand& demand);

}  // namespace lfm2
