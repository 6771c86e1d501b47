// Every candidate is replayed. Cuts, of which there are too many, are searched at random.
#include "stage/scoring/planning/choose.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <random>
#include <utility>

#include "stage/scoring/planning/replay.h"

namespace lfm2 {

namespace {

// Every piece adds kernel launches and transfers, and estimates are inexact, so smaller savings do not count.
constexpr double kWorthwhile = 0.98;
constexpr int64_t kMaxPieces = 4;
// The sizes of the last micro-batch, as shares of the others' tokens.
constexpr std::array kLastShares = {1.0 / 2, 3.0 / 8, 1.0 / 4, 3.0 / 16, 1.0 / 8, 3.0 / 32, 1.0 / 16};
// The number of replays in a search for a faster cut; fewer if each takes longer. kRounds: rounds of choosing cut and
// micro-batch.
constexpr int64_t kMaxReplays = 4000, kMaxReplayedForwards = 500000, kMinReplays = 200, kRounds = 2;
// With more micro-batches, the last one hardly matters.
constexpr int64_t kMaxLateMicroBatches = 16;
constexpr size_t kMaxMoved = 3;           // ends of virtual stages, in a row, at a time
constexpr double kFirstTolerance = 0.02;  // of slower cuts on that way
// The bandwidth of results through the host's memory, with hashing by several threads: slower than the bus, faster than
// files. Pipelines of one host share its memory. The output spans of --trace show these bandwidths.
constexpr double kResultBytesPerSecond = 40e9, kThreadResultBytesPerSecond = 2e9, kHostResultBytesPerSecond = 50e9;

PipelineShape shape_of(const PipelineJob& job, const std::vector<LayerRange>& cut) {
  return {.stages = job.stages, .pieces = std::ssize(cut) / job.stages};
}

int64_t sample_count(const PipelineJob& job) { return (job.tokens + job.length - 1) / job.length; }

// The micro-batches of a job whose samples are all equally long, cut as MicroBatches cuts them.
struct CutSamples {
  int64_t count, tokens, last_tokens;
  bool in_parts = false;
};
CutSamples cut_samples(const PipelineJob& job, int64_t target) {
  MicroBatches::Size size = job.size;
  size.tokens = target;
  const int64_t samples = sample_count(job);
  if (const int64_t parts = MicroBatches::parts(job.length, size); parts > 1)
    return {samples * parts, (job.length + parts - 1) / parts, (job.length + parts - 1) / parts, true};
  const int64_t whole =
      std::clamp<int64_t>(size.samples > 0 ? size.samples : target / job.length, 1, std::max<int64_t>(1, samples));
  const int64_t count = (samples + whole - 1) / whole;
  return {count, whole * job.length, (samples - (count - 1) * whole) * job.length};
}

// The seconds of a job with micro-batches of up to `target` tokens, until all its results are emitted.
double job_seconds(PipelineCosts costs, const PipelineJob& job, int64_t target) {
  const CutSamples cut = cut_samples(job, target);
  costs.result_seconds = result_seconds(job);
  return pipeline_seconds(costs, cut.count, cut.tokens, cut.last_tokens);
}

// A faster cut, by threshold accepting (Dueck and Scheuer, 1990): one end of virtual stages, or a few in a row, moves
// by half a layer or a whole one, at random. A slightly slower cut is accepted, too, and the accepted difference falls
// to zero: a cut that no single move makes faster is seldom the fastest.
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
  const int64_t replayed = std::min(cut_samples(job, target).count, 2 * replayed_part(shape_of(job, cut)));
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

PipelineChoice choose_for(const BlockCosts& costs, const PipelineJob& job, int64_t pieces) {
  const auto best_of = [&](const std::vector<LayerRange>& cut) {
    PipelineChoice best = choose(costs_of_cut(costs, job, cut), job);
    best.cut = cut;
    return best;
  };
  PipelineChoice fastest = best_of(equal_partition(std::ssize(costs.blocks) / kBlocksOfLayer, job.stages * pieces));
  if (!job.balance) return fastest;
  // The search begins with the cut that minimises the largest sum of costs, at the best micro-batch size of the equal
  // cut. With several pieces, neither the slowest piece nor the slowest rank determines the job's time, because ranks
  // wait for each other if pieces of one round differ. Cut and micro-batch depend on each other.
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

}  // namespace

double result_seconds(const PipelineJob& job) {
  return job.result_bytes / std::min({kResultBytesPerSecond, kThreadResultBytesPerSecond * job.result_threads,
                                      kHostResultBytesPerSecond / static_cast<double>(job.pipelines_on_host)});
}

// Of the last micro-batch, the first part counts as a micro-batch that computes the early layers for both, the second
// as another one.
double late_seconds(const PipelineJob& job, const LateJob& late, const std::function<double(int64_t)>& seconds_of) {
  const int64_t last = late.micro_batches - 1;
  const auto samples_of = [&](int64_t part) {
    return part < last ? late.whole : part == last ? late.rest - late.second : late.second;
  };
  const auto forward = [&](int64_t, int64_t part) {
    if (part < last) return seconds_of(late.whole);
    return (part == last ? late.early * seconds_of(late.rest) : 0) + (1 - late.early) * seconds_of(samples_of(part));
  };
  const auto results = [&](int64_t part) {
    return result_seconds(job) * static_cast<double>(job.length) * static_cast<double>(samples_of(part));
  };
  return replay({}, late.micro_batches + 1, {.forward = forward, .transfer = {}, .head = {}, .results = results})
      .seconds;
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
  for (int64_t parts = 2; parts <= MicroBatches::max_parts(job.length, job.size); ++parts)
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

PipelineChoice choose(const PipelineCosts& costs, const PipelineJob& job) {
  PipelineChoice best{.shape = costs.shape};
  const auto consider = [&](int64_t target, double seconds, LateParts late = {}) {
    if (seconds >= best.seconds) return;
    best.target_tokens = target;
    best.late = late;
    best.seconds = seconds;
  };
  const auto consider_target = [&](int64_t target) { consider(target, job_seconds(costs, job, target)); };
  if (job.size.samples > 0) {
    consider_target(job.size.samples * job.length);
    return best;
  }
  for (const int64_t target : candidate_targets(job)) consider_target(target);
  if (cut_samples(job, best.target_tokens).in_parts) return best;
  const int64_t samples = sample_count(job), equal = cut_samples(job, best.target_tokens).count;
  for (const int64_t count : {equal, equal + 1})
    for (const double share : kLastShares) {
      const auto whole =
          static_cast<int64_t>(std::ceil(static_cast<double>(samples) / (static_cast<double>(count - 1) + share)));
      if (count > 1 && whole * job.length <= job.size.tokens) consider_target(whole * job.length);
    }
  // Late parts are combined with the largest micro-batches, which read the weights least often.
  const int64_t most = std::max<int64_t>(1, job.size.tokens / job.length), count = (samples + most - 1) / most,
                whole = (samples + count - 1) / count, rest = samples - (count - 1) * whole;
  if (job.size.tokens < job.length || rest < 2 || count > kMaxLateMicroBatches) return best;
  double early = 0;
  for (size_t layer = 0; layer < costs.layer_shares.size(); ++layer) {
    early += costs.layer_shares[layer];
    for (const double share : kLastShares) {
      const auto second = std::clamp<int64_t>(std::llround(share * static_cast<double>(rest)), 1, rest - 1);
      const auto seconds_of = [&](int64_t part) {
        return costs.virtual_stages.front().seconds(static_cast<double>(part * job.length));
      };
      const LateJob late{.micro_batches = count, .whole = whole, .rest = rest, .second = second, .early = early};
      consider(whole * job.length, late_seconds(job, late, seconds_of),
               {.layer = static_cast<int64_t>(layer) + 1, .samples = second});
    }
  }
  return best;
}

PipelineChoice choose(const BlockCosts& costs, const PipelineJob& job) {
  if (job.pieces > 0) return choose_for(costs, job, job.pieces);
  const int64_t most =
      job.stages == 1 ? 1 : std::min(kMaxPieces, std::ssize(costs.blocks) / kBlocksOfLayer / job.stages);
  PipelineChoice fastest = choose_for(costs, job, 1);
  for (int64_t pieces = 2; pieces <= most; ++pieces)
    if (PipelineChoice choice = choose_for(costs, job, pieces); choice.seconds < kWorthwhile * fastest.seconds)
      fastest = std::move(choice);
  return fastest;
}

}  // namespace lfm2
