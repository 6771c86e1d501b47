// Nothing here depends on the machine at hand.
#include "stage/scoring/planning/scoring_demand.h"

#include <algorithm>

#include "stage/model/token_pruning.h"

namespace lfm2 {

namespace {

// The mean bytes of results for each token.
double result_bytes(const ModelConfig& config, const ScoringDemand& demand) {
  const ResultKind& results = demand.results;
  if (results.positions == Positions::kNone && results.hidden == Hidden::kNone) return 0;
  const auto rows = results.of_last_positions() ? 1 / static_cast<double>(demand.length) : 1.0;
  if (results.hidden != Hidden::kNone)
    return rows * static_cast<double>(config.hidden) * static_cast<double>(size_bytes(demand.compute));
  if (results.columns() > 0) return rows * static_cast<double>(results.columns()) * (sizeof(int32_t) + sizeof(float));
  return rows * static_cast<double>(config.vocab) * sizeof(float);
}

}  // namespace

TimedSizes timed_sizes(bool cuda) {
  return cuda ? TimedSizes{} : TimedSizes{.small = kMinCpuPart, .large = kMaxCpuTarget};
}

// Parts bring nothing if one rank has all layers. The last part of a sample must contain its tail.
MicroBatches::Size micro_batch_size(const ModelConfig& config, const ScoringDemand& demand, int64_t tokens) {
  const int64_t smallest_part = std::max(demand.cuda ? kMinCudaPart : kMinCpuPart, tail_length(config));
  return {.samples = demand.micro_batch,
          .tokens = tokens,
          .smallest_part = demand.stages == 1 ? 0 : smallest_part,
          .part = demand.cuda ? 0 : kMaxCpuPart,
          .growth = demand.cuda ? estimate_part_growth(config, demand.compute, demand.results.of_last_positions()) : 0,
          .replicas = demand.replicas};
}

PipelineJob pipeline_job(const ModelConfig& config, const ScoringDemand& demand, int64_t tokens, int64_t max_target) {
  return {.stages = demand.stages,
          .tokens = tokens,
          .length = demand.length,
          .size = micro_batch_size(config, demand, max_target),
          .result_bytes = result_bytes(config, demand),
          .pipelines_on_host = demand.pipelines_on_host,
          .result_threads = demand.result_threads,
          .devices = demand.devices,
          .pieces = demand.virtual_stages};
}

double rows_of_tokens(const ScoringDemand& demand) {
  const ResultKind& results = demand.results;
  if (results.positions == Positions::kNone || results.hidden != Hidden::kNone) return 0;
  return results.of_last_positions() ? 1 / static_cast<double>(demand.length) : 1;
}

BlockCosts costs_of_job(const ModelConfig& config, const ScoringDemand& demand, const BlockCosts& measured) {
  const auto length = static_cast<double>(demand.length);
  const double kept =
      demand.results.of_last_positions() ? std::min(length, static_cast<double>(tail_length(config))) / length : 0;
  const double rows = rows_of_tokens(demand);
  BlockCosts costs = measured_costs(config, demand.compute, kept, rows, measured);
  costs.transfer = demand.transfer;
  // For samples in parts, the head reads its weights only for the last part.
  if (rows < 1 && demand.length > (demand.cuda ? kMaxCudaTarget : kMaxCpuTarget))
    costs.head = {.fixed = 0, .per_token = costs.head.per_token + rows * costs.head.fixed};
  return costs;
}

PipelineChoice given_choice(const ModelConfig& config, const ScoringDemand& demand, int64_t tokens) {
  const int64_t pieces = std::max<int64_t>(1, demand.virtual_stages);
  const PipelineShape shape{.stages = demand.stages, .pieces = pieces};
  return {.shape = shape,
          .cut = given_partition(config.layers, demand.stages, demand.layer_counts, pieces),
          .target_tokens = choose_target_tokens(tokens, shape, demand.cuda ? kMaxCudaTarget : kMaxCpuTarget),
          .seconds = 0};
}

PipelineChoice choose_again(const ModelConfig& config, const ScoringDemand& demand, PipelineCosts costs, int64_t tokens,
                            int64_t max_target) {
  // With replicas it is not known in advance which micro-batch is the last one of a rank.
  if (costs.shape.virtual_stages() == 1 && demand.results.of_last_positions() && demand.replicas == 1)
    costs.layer_shares = estimate_layer_shares(config, demand.compute, demand.length);
  return choose(costs, pipeline_job(config, demand, tokens, max_target));
}

}  // namespace lfm2
