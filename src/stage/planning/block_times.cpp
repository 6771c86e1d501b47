// Between two measured lengths, and between two numbers of cached tokens, times are on a line. Beyond them the nearest
// counts.
#include "stage/planning/block_times.h"

#include <algorithm>
#include <cmath>

#include "stage/model/memory_plan.h"
#include "stage/model/token_pruning.h"
#include "stage/scoring/planning/scoring_demand.h"

namespace lfm2 {

namespace {

const HostCosts& costs_of(const MachineCosts& machine, int64_t ranks) {
  const auto found = std::find_if(machine.hosts.begin(), machine.hosts.end(),
                                  [&](const HostCosts& one) { return one.ranks >= ranks; });
  return found == machine.hosts.end() ? machine.hosts.back() : *found;
}

// seconds(entry) at `where`, a place among the entries' own.
template <class Entry>
double between(const std::vector<Entry>& entries, double where, const auto& place, const auto& seconds) {
  size_t right = 0;
  while (right + 1 < entries.size() && static_cast<double>(place(entries[right])) < where) ++right;
  const Entry& to = entries[right];
  const Entry& from = entries[right > 0 ? right - 1 : 0];
  const auto begin = static_cast<double>(place(from)), end = static_cast<double>(place(to));
  const double share = end > begin ? std::clamp((where - begin) / (end - begin), 0.0, 1.0) : 1;
  return (1 - share) * seconds(from) + share * seconds(to);
}

}  // namespace

BlockTimes::BlockTimes(const MachineCosts& machine, const ModelConfig& config, int64_t ranks)
    : machine_(machine),
      config_(config),
      host_(costs_of(machine, ranks)),
      kinds_(block_kinds(config)),
      pruning_(last_attention_layer(config) < 0 ? -1 : last_attention_layer(config) * kBlocksOfLayer) {}

double BlockTimes::samples(int64_t block, double tokens, int64_t length, bool prunes) const {
  if (tokens <= 0) return 0;
  const size_t kind = kinds_.kind_of[static_cast<size_t>(block)];
  return between(
      host_.samples, static_cast<double>(length), [](const SampleCosts& one) { return one.length; },
      [&](const SampleCosts& one) {
        const bool whole = block == pruning_ && !prunes && !one.unpruned.sizes.empty();
        return (whole ? one.unpruned : one.blocks[kind]).at(tokens);
      });
}

double BlockTimes::steps(int64_t block, double sequences, double cached) const {
  if (sequences <= 0) return 0;
  const size_t kind = kinds_.kind_of[static_cast<size_t>(block)];
  return between(
      host_.steps, cached, [](const StepCosts& one) { return one.cached; },
      [&](const StepCosts& one) { return one.blocks[kind].at(sequences); });
}

// After the token mixer of the last layer, only rows with a result continue.
double BlockTimes::of(int64_t block, const MicroBatchRows& batch) const {
  double tokens = batch.prunes && pruning_ >= 0 && block > pruning_ ? batch.kept : batch.tokens;
  if (block == config_.layers * kBlocksOfLayer - 1) tokens = std::min(tokens, batch.rows);
  return samples(block, tokens, batch.length, batch.prunes);
}

double BlockTimes::of(int64_t block, const StepRows& step) const {
  const bool mixer = block % kBlocksOfLayer == 0;
  double prompts = pruning_ >= 0 && block > pruning_ ? step.kept : step.prompts;
  if (block == config_.layers * kBlocksOfLayer - 1) prompts = std::max(0.0, step.rows - step.decoding);
  if (prompts <= 0) return steps(block, step.decoding, step.cached);
  const bool attends = mixer && is_attention(config_.layer_types[static_cast<size_t>(block / kBlocksOfLayer)]);
  // Only attention differs between tokens of prompts and of decoding sequences. Its weights are read once.
  if (!attends) return samples(block, step.decoding + prompts, step.length, false);
  if (step.decoding == 0) return samples(block, prompts, step.length, block == pruning_);
  const double fixed = std::min(samples(block, 1, step.length, false), steps(block, 1, step.cached));
  return samples(block, prompts, step.length, block == pruning_) +
         std::max(0.0, steps(block, step.decoding, step.cached) - fixed);
}

double BlockTimes::head(double rows) const {
  if (rows <= 0) return 0;
  const auto most = static_cast<double>(kHeadRows);
  const double full = std::floor(rows / most), rest = rows - full * most;
  return full * host_.head.at(most) + (rest > 0 ? host_.head.at(rest) : 0);
}

BlockCosts BlockTimes::as_measured(int64_t length, bool prunes) const {
  const TimedSizes sizes = timed_sizes(machine_.cuda);
  const auto small = static_cast<double>(sizes.small), large = static_cast<double>(sizes.large);
  BlockCosts costs;
  for (int64_t block = 0; block < config_.layers * kBlocksOfLayer; ++block)
    costs.blocks.push_back(line_through(sizes, samples(block, 1, length, prunes), samples(block, small, length, prunes),
                                        samples(block, large, length, prunes)));
  constexpr TimedSizes kRows{.small = 32, .large = kHeadRows};
  costs.head = line_through(kRows, head(1), head(kRows.small), head(kRows.large));
  return costs;
}

}  // namespace lfm2
