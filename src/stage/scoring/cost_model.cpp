// Two sizes give a line of seconds over tokens; best_target_tokens tries every size of micro-batch on it.
#include "stage/scoring/cost_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <tuple>
#include <utility>

#include "stage/model/memory_plan.h"
#include "stage/scoring/replay.h"

namespace lfm2 {

namespace {

constexpr int64_t kReplayedGroups = 4;
// Every piece adds kernels that start and transfers; estimates are not so exact that less than this saving counts.
constexpr double kWorthwhile = 0.98;
constexpr int64_t kMaxPieces = 4;
// Of the other micro-batches' tokens, that the last one may have.
constexpr std::array kLastShares = {1.0 / 2, 3.0 / 8, 1.0 / 4, 3.0 / 16, 1.0 / 8, 3.0 / 32, 1.0 / 16};
// Of cuts on the way to a faster one; fewer where each takes longer. Cut and micro-batch are chosen in turn, so many
// times.
constexpr int64_t kMaxReplays = 4000, kMaxReplayedForwards = 500000, kMinReplays = 200, kRounds = 2;
// Where there are more micro-batches, the last one hardly matters.
constexpr int64_t kMaxLateMicroBatches = 16;
constexpr size_t kMaxMoved = 3;           // ends of virtual stages, in a row, at a time
constexpr double kFirstTolerance = 0.02;  // of slower cuts on that way

// The speed of matrix products and of memory, as measured on an H200 (docs/performance.md). Other GPUs differ in both
// by about the same factor, and only the ratio matters.
constexpr double kFlopsPerSecond = 550e12, kBytesPerSecond = 3.5e12, kAttentionFlopsPerSecond = 280e12;
// Results on their way through the host's memory, hashed by some threads: slower than the bus, faster than files.
// Several pipelines of one host share its memory.
// By the output spans of --trace, four H200: 22 threads hand out 44 GB/s, four times 15 threads 54 in all.
constexpr double kResultBytesPerSecond = 40e9, kThreadResultBytesPerSecond = 2e9, kHostResultBytesPerSecond = 50e9;
constexpr double kLaunchSeconds = 15e-6;  // the small kernels of a block, which take this long for any number of tokens

PipelineShape shape_of(const PipelineJob& job, const std::vector<LayerRange>& cut) {
  return {.stages = job.stages, .pieces = std::ssize(cut) / job.stages};
}

int64_t sample_count(const PipelineJob& job) { return (job.tokens + job.length - 1) / job.length; }

// The micro-batches of a job whose samples are all equally long, cut as MicroBatches cuts them.
struct CutSamples {
  int64_t count, tokens, last_tokens;
};
MicroBatches::Size size_of(const PipelineJob& job, int64_t target) {
  MicroBatches::Size size = job.size;
  size.tokens = target;
  return size;
}
CutSamples cut_samples(const PipelineJob& job, int64_t target) {
  const MicroBatches::Size size = size_of(job, target);
  const int64_t samples = sample_count(job);
  if (const int64_t parts = MicroBatches::parts(job.length, size); parts > 1)
    return {samples * parts, (job.length + parts - 1) / parts, (job.length + parts - 1) / parts};
  const int64_t whole =
      std::clamp<int64_t>(size.samples > 0 ? size.samples : target / job.length, 1, std::max<int64_t>(1, samples));
  const int64_t count = (samples + whole - 1) / whole;
  return {count, whole * job.length, (samples - (count - 1) * whole) * job.length};
}

// The seconds until the results of a token are handed out.
double result_seconds(const PipelineJob& job) {
  return job.result_bytes / std::min({kResultBytesPerSecond, kThreadResultBytesPerSecond * job.result_threads,
                                      kHostResultBytesPerSecond / static_cast<double>(job.pipelines_on_host)});
}

// The seconds of a job with micro-batches of up to `target` tokens, until all its results are handed out.
double job_seconds(PipelineCosts costs, const PipelineJob& job, int64_t target) {
  const CutSamples cut = cut_samples(job, target);
  costs.result_seconds = result_seconds(job);
  return pipeline_seconds(costs, cut.count, cut.tokens, cut.last_tokens);
}

// A faster cut, by threshold accepting (Dueck and Scheuer, 1990): one end of virtual stages, or a few in a row, moves
// by half a layer or a whole one, at random. A cut that takes a little longer is gone on with, too, and how much longer
// it may take falls to nothing: a cut that no single move makes faster is seldom the fastest.
std::vector<LayerRange> improve_cut(const BlockCosts& costs, const PipelineJob& job, int64_t target,
                                    const std::vector<LayerRange>& cut, std::mt19937& generator) {
  using Ends = std::vector<int64_t>;  // of the virtual stages, in blocks
  const auto seconds_of = [&](const Ends& ends) {
    return job_seconds(costs_of_cut(costs, job, cut_at_blocks(ends)), job, target);
  };
  Ends ends;
  for (const LayerRange& range : cut) ends.push_back(end_block(range));
  if (ends.size() < 2) return cut;
  Ends fastest = ends;
  double seconds = seconds_of(ends), least = seconds;
  const double tolerance = kFirstTolerance * seconds;
  const int64_t replayed =
      std::min(cut_samples(job, target).count, 2 * kReplayedGroups * Schedule::smallest_group(shape_of(job, cut)));
  const int64_t replays = std::clamp(kMaxReplayedForwards / (replayed * std::ssize(cut)), kMinReplays, kMaxReplays);
  const auto below = [&](size_t count) { return generator() % count; };  // the same on every machine
  for (int64_t left = replays; left > 0; --left) {
    Ends moved = ends;
    const size_t first = below(ends.size() - 1), count = 1 + below(kMaxMoved);
    const int64_t blocks = (below(2) == 0 ? -1 : 1) * (below(3) == 0 ? 2 : 1);
    for (size_t at = first; at < std::min(first + count, ends.size() - 1); ++at) moved[at] += blocks;
    const bool empty_stage =
        moved.front() < 1 || std::adjacent_find(moved.begin(), moved.end(), std::greater_equal<>()) != moved.end();
    if (empty_stage) continue;
    const double found = seconds_of(moved);
    const double share = static_cast<double>(left) / static_cast<double>(replays);
    if (found > seconds + tolerance * share * share) continue;
    seconds = found;
    ends = std::move(moved);
    if (seconds >= least) continue;
    least = seconds;
    fastest = ends;
  }
  return cut_at_blocks(fastest);
}

}  // namespace

BlockKinds block_kinds(const ModelConfig& config) {
  BlockKinds kinds;
  // Of a token mixer its type, and whether it cuts the tails; of a feed-forward whether it is dense.
  std::vector<std::tuple<std::optional<LayerType>, bool>> known;
  for (int64_t block = 0; block < config.layers * kBlocksOfLayer; ++block) {
    const int64_t layer = block / kBlocksOfLayer;
    const bool mixes = block % kBlocksOfLayer == 0;
    const std::tuple kind{mixes ? std::optional(config.layer_types[static_cast<size_t>(layer)]) : std::nullopt,
                          mixes ? layer == last_attention_layer(config) : config.is_dense(layer)};
    const auto found = static_cast<size_t>(std::find(known.begin(), known.end(), kind) - known.begin());
    if (found == known.size()) {
      known.push_back(kind);
      kinds.examples.push_back(block);
    }
    // The first block comes with the embedding, which is read for nothing.
    if (kinds.examples[found] == 0) kinds.examples[found] = block;
    kinds.kind_of.push_back(found);
  }
  return kinds;
}

double pipeline_seconds(const PipelineCosts& costs, int64_t micro_batches, int64_t tokens, int64_t last_tokens) {
  const auto seconds_of = [&](int64_t count) {
    const auto size = [&](int64_t micro_batch) {
      return static_cast<double>(micro_batch + 1 == count ? last_tokens : tokens);
    };
    const ActionTimes times{
        .forward =
            [&](int64_t virtual_stage, int64_t micro_batch) {
              return costs.virtual_stages[static_cast<size_t>(virtual_stage)].seconds(size(micro_batch));
            },
        .transfer = [&](int64_t micro_batch) { return costs.transfer.seconds(size(micro_batch)); },
        .head = {},
        .results = [&](int64_t micro_batch) { return costs.result_seconds * size(micro_batch); }};
    return replay(costs.shape, count, times, costs.devices).seconds;
  };
  // Whole groups, so that one like the other follows when the pipeline is full.
  const int64_t replayed = kReplayedGroups * Schedule::smallest_group(costs.shape);
  if (micro_batches <= 2 * replayed) return seconds_of(micro_batches);
  const double part = seconds_of(replayed), twice = seconds_of(2 * replayed);
  return twice + (twice - part) / static_cast<double>(replayed) * static_cast<double>(micro_batches - 2 * replayed);
}

std::vector<int64_t> candidate_targets(const PipelineJob& job) {
  const int64_t samples = sample_count(job), largest = job.size.tokens;
  std::vector<int64_t> targets;
  // Each cuts the job into another number of micro-batches.
  for (int64_t whole = std::min(samples, largest / job.length); whole > 0; --whole) {
    const int64_t micro_batches = (samples + whole - 1) / whole;
    whole = (samples + micro_batches - 1) / micro_batches;
    targets.push_back(whole * job.length);
  }
  for (int64_t parts = 2; parts <= MicroBatches::most_parts(job.length, job.size); ++parts)
    if (const int64_t target = MicroBatches::largest_part(job.length, job.size, parts); target <= largest)
      targets.push_back(target);
  if (targets.empty()) targets.push_back(job.length);
  if (targets.size() <= kMaxCandidates) return targets;
  // Near the best size a job's seconds change far less than the size does.
  const double ratio = std::pow(static_cast<double>(targets.back()) / static_cast<double>(targets.front()),
                                1.0 / static_cast<double>(kMaxCandidates - 1));
  std::vector<int64_t> kept{targets.front()};
  for (const int64_t target : targets)
    if (static_cast<double>(target) <= ratio * static_cast<double>(kept.back())) kept.push_back(target);
  if (kept.back() != targets.back()) kept.push_back(targets.back());
  return kept;
}

int64_t best_target_tokens(const PipelineCosts& costs, const PipelineJob& job) {
  int64_t best = 0;
  double best_seconds = std::numeric_limits<double>::infinity();
  const auto consider = [&](int64_t target) {
    const double seconds = job_seconds(costs, job, target);
    if (seconds >= best_seconds) return;
    best_seconds = seconds;
    best = target;
  };
  for (const int64_t target : candidate_targets(job)) consider(target);
  if (MicroBatches::parts(job.length, size_of(job, best)) > 1) return best;
  const int64_t equal = cut_samples(job, best).count;
  for (const int64_t count : {equal, equal + 1})
    for (const double share : kLastShares) {
      const auto whole = static_cast<int64_t>(
          std::ceil(static_cast<double>(sample_count(job)) / (static_cast<double>(count - 1) + share)));
      if (count > 1 && whole * job.length <= job.size.tokens) consider(whole * job.length);
    }
  return best;
}

std::optional<LateChoice> choose_late_parts(const PipelineCosts& costs, const PipelineJob& job,
                                            const std::vector<double>& layers, int64_t last) {
  expect(costs.shape.virtual_stages() == 1, "choose_late_parts: several stages");
  const int64_t samples = sample_count(job), most = job.size.tokens / job.length;
  if (most == 0) return {};
  // The largest micro-batches, which read the weights least often.
  const int64_t count = (samples + most - 1) / most, whole = (samples + count - 1) / count,
                rest = samples - (count - 1) * whole;
  if (rest < 2 || count > kMaxLateMicroBatches) return {};
  const double of_results = result_seconds(job) * static_cast<double>(job.length);  // of a sample
  const auto seconds_of = [&](int64_t some) {
    return costs.virtual_stages.front().seconds(static_cast<double>(some * job.length));
  };
  std::optional<LateChoice> fastest;
  double early = 0;  // the share of the layers in front
  for (int64_t layer = 1; layer <= last; ++layer) {
    early += layers[static_cast<size_t>(layer - 1)];
    for (const double share : kLastShares) {
      const auto second = std::clamp<int64_t>(std::llround(share * static_cast<double>(rest)), 1, rest - 1);
      const auto samples_of = [&](int64_t part) {
        return part < count - 1 ? whole : part < count ? rest - second : second;
      };
      // The first part counts as a micro-batch that computes the layers in front for both, the second as another one.
      const auto forward = [&](int64_t, int64_t part) {
        if (part < count - 1) return seconds_of(whole);
        const double behind = (1 - early) * seconds_of(samples_of(part));
        return part < count ? early * seconds_of(rest) + behind : behind;
      };
      const auto results = [&](int64_t part) { return of_results * static_cast<double>(samples_of(part)); };
      const double seconds =
          replay(costs.shape, count + 1, {.forward = forward, .transfer = {}, .head = {}, .results = results}).seconds;
      if (fastest && seconds >= fastest->seconds) continue;
      fastest = LateChoice{.target_tokens = whole * job.length, .parts = {layer, second}, .seconds = seconds};
    }
  }
  if (fastest && fastest->seconds >= job_seconds(costs, job, best_target_tokens(costs, job))) return {};
  return fastest;
}

double estimate_part_growth(const ModelConfig& config, DType compute, bool last_positions) {
  const int64_t tokens = kMaxCudaTarget;
  double seconds = 0;
  for (const double block : estimate_block_seconds(config, compute, tokens, 0)) seconds += block;
  auto layers = std::count(config.layer_types.begin(), config.layer_types.end(), LayerType::kAttention);
  if (last_positions && layers > 0) --layers;  // the last one has the tails alone
  // Scores and sums of values: a multiplication and an addition each, for every element of a head.
  const auto flops = static_cast<double>(4 * layers * config.heads * config.head_dim);
  return flops / kAttentionFlopsPerSecond / (seconds / static_cast<double>(tokens));
}

StageTime estimate_transfer(const ModelConfig& config, DType compute, LinkEstimate link) {
  return {.fixed = link.seconds,
          .per_token =
              static_cast<double>(config.hidden) * static_cast<double>(size_bytes(compute)) / link.bytes_per_second};
}

BlockCosts estimate_costs(const ModelConfig& config, DType compute, double kept) {
  const auto seconds = [&](int64_t tokens) {
    const auto tails = static_cast<int64_t>(kept * static_cast<double>(tokens));
    return estimate_block_seconds(config, compute, tokens, kept > 0 ? std::max<int64_t>(1, tails) : 0);
  };
  constexpr TimedSizes kSizes;
  const std::vector<double> small = seconds(kSizes.small), large = seconds(kSizes.large);
  BlockCosts costs{.blocks = {}, .head = {}, .transfer = estimate_transfer(config, compute)};
  for (size_t block = 0; block < small.size(); ++block)
    costs.blocks.push_back(line_through(kSizes, small[block], large[block]));
  return costs;
}

BlockCosts measured_costs(const ModelConfig& config, DType compute, double kept, double rows,
                          const std::vector<StageTime>& measured, StageTime head) {
  const BlockCosts whole = estimate_costs(config, compute, 0);
  BlockCosts costs = estimate_costs(config, compute, kept);
  for (size_t block = 0; block < measured.size(); ++block) {
    // Of the block that cuts the tails, what was measured is what is wanted.
    const bool cuts = static_cast<int64_t>(block) == last_attention_layer(config) * kBlocksOfLayer;
    const BlockCosts& same = cuts ? costs : whole;
    const double share =
        same.blocks[block].per_token > 0 ? costs.blocks[block].per_token / same.blocks[block].per_token : 1;
    costs.blocks[block] = {.fixed = measured[block].fixed, .per_token = share * measured[block].per_token};
  }
  if (rows > 0) costs.head = {.fixed = head.fixed, .per_token = rows * head.per_token};
  return costs;
}

PipelineCosts costs_of_cut(const BlockCosts& costs, const PipelineJob& job, const std::vector<LayerRange>& cut) {
  PipelineCosts result{
      .shape = shape_of(job, cut), .virtual_stages = {}, .transfer = costs.transfer, .devices = job.devices};
  const auto add = [](StageTime& to, const StageTime& time) {
    to.fixed += time.fixed;
    to.per_token += time.per_token;
  };
  for (const LayerRange& range : cut) {
    StageTime& time = result.virtual_stages.emplace_back();
    for (int64_t block = first_block(range); block < end_block(range); ++block)
      add(time, costs.blocks[static_cast<size_t>(block)]);
  }
  add(result.virtual_stages.back(), costs.head);
  return result;
}

PipelineChoice choose_micro_batch(const BlockCosts& costs, const PipelineJob& job, int64_t pieces, bool balance) {
  const auto best_of = [&](const std::vector<LayerRange>& cut) {
    const PipelineCosts of_cut = costs_of_cut(costs, job, cut);
    const int64_t target = job.size.samples > 0 ? job.size.samples * job.length : best_target_tokens(of_cut, job);
    return PipelineChoice{
        .shape = of_cut.shape, .cut = cut, .target_tokens = target, .seconds = job_seconds(of_cut, job, target)};
  };
  PipelineChoice fastest = best_of(equal_partition(std::ssize(costs.blocks) / kBlocksOfLayer, job.stages * pieces));
  if (!balance) return fastest;
  // The smallest largest sum of costs at the size of micro-batch that suits the equal cut is where the search begins.
  // With several pieces neither the slowest piece nor the slowest rank alone says how long a job takes: ranks wait for
  // each other where pieces of one round differ. Cut and micro-batch depend on each other.
  const auto tokens = static_cast<double>(fastest.target_tokens);
  std::vector<double> seconds;
  for (const StageTime& block : costs.blocks) seconds.push_back(block.seconds(tokens));
  seconds.back() += costs.head.seconds(tokens);
  std::mt19937 generator;
  for (PipelineChoice choice : {best_of(balanced_partition(seconds, job.stages * pieces)), fastest})
    for (int64_t round = 0; round < kRounds; ++round) {
      choice = best_of(improve_cut(costs, job, choice.target_tokens, choice.cut, generator));
      if (choice.seconds < fastest.seconds) fastest = choice;
    }
  return fastest;
}

PipelineChoice choose_pipeline(const BlockCosts& costs, const PipelineJob& job) {
  std::optional<PipelineChoice> fastest;
  const int64_t most =
      job.stages == 1 ? 1 : std::min(kMaxPieces, std::ssize(costs.blocks) / kBlocksOfLayer / job.stages);
  for (int64_t pieces = 1; pieces <= most; ++pieces) {
    const PipelineChoice choice = choose_micro_batch(costs, job, pieces, true);
    if (!fastest || choice.seconds < kWorthwhile * fastest->seconds) fastest = choice;
  }
  return *fastest;
}

std::vector<double> estimate_block_seconds(const ModelConfig& config, DType compute, int64_t tokens, int64_t kept) {
  std::vector<double> seconds;
  const int64_t cut = (kept > 0 ? last_attention_layer(config) : config.layers) * kBlocksOfLayer;
  for (int64_t block = 0; block < config.layers * kBlocksOfLayer; ++block) {
    const auto of = [&](int64_t count) {
      const StageMemory cost = stage_memory(config, layers_of_blocks(block, block + 1), compute, compute, count, 0);
      return std::max(cost.layer_flops / kFlopsPerSecond, static_cast<double>(cost.weight_bytes) / kBytesPerSecond) +
             static_cast<double>(cost.scratch_bytes) / kBytesPerSecond + kLaunchSeconds;
    };
    // The attention that cuts the tails takes a time between the two: it needs the keys and values of all tokens, which
    // come out of one product with the queries, and all else only of the kept ones.
    seconds.push_back(block < cut ? of(tokens) : block > cut ? of(kept) : 0.5 * of(tokens) + 0.5 * of(kept));
  }
  return seconds;
}

}  // namespace lfm2
