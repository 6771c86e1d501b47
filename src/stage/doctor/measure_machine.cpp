// Ranks of a host that compute at a time slow each other, so several numbers of ranks are timed, all on the same work.
#include "stage/doctor/measure_machine.h"

#include <algorithm>
#include <map>
#include <optional>

#include "comm/stall.h"
#include "stage/job/session.h"
#include "stage/version.h"

namespace lfm2 {

namespace {

constexpr double kWarmSeconds = 0.25;  // of a GPU before each size: its clock falls under load
// Lengths of samples, and cached tokens of sequences, that are timed besides --length. Attention is linear in both.
constexpr int64_t kShortSample = 32, kLongCpuSample = 512, kLongCudaSample = 2048;
constexpr int64_t kFewCached = 32, kManyCached = 512;
constexpr int64_t kConsecutiveCounts = 8;

void add_once(std::vector<int64_t>& values, int64_t value) {
  const auto place = std::lower_bound(values.begin(), values.end(), value);
  if (place == values.end() || *place != value) values.insert(place, value);
}

CostCurve first_of(CostCurve curve, size_t count) {
  curve.sizes.resize(count);
  curve.seconds.resize(count);
  return curve;
}

// What is measured on this rank, one block at a time.
class HostTimer {
 public:
  HostTimer(const Options& options, const Machine& machine, const ShardSet& shards, DType compute, int64_t ranks)
      : machine_(machine), shards_(shards), config_(shards.config()), compute_(compute), kinds_(block_kinds(config_)) {
    for (const int64_t length : {kShortSample, machine.cuda ? kLongCudaSample : kLongCpuSample, options.length})
      add_once(lengths_, std::min(length, config_.max_positions));
    for (const int64_t cached : {kFewCached, kManyCached})
      add_once(cached_, std::min(cached, config_.max_positions - 1));
    for (const int64_t tokens : saved_token_sizes(machine.cuda))
      if (!machine.cuda || fits(tokens)) token_sizes_.push_back(tokens);
    if (token_sizes_.empty())
      throw Error(ExitCode::kUnavailable, "--save: the GPU has too little free memory for the smallest micro-batch");
    // A whole sample is a micro-batch of a single rank.
    if (machine.cuda) return;
    for (const int64_t length : lengths_) add_once(token_sizes_, length);
    others_.emplace(*machine.backend, other_weight_bytes(config_, compute, ranks));
  }

  // `together`: called before each measurement, so that all ranks measure the same at a time.
  HostCosts measure(int64_t ranks, const std::function<void()>& together) const {
    HostCosts costs{.ranks = ranks, .samples = {}, .steps = {}, .head = {}};
    for (const int64_t length : lengths_) costs.samples.push_back({.length = length, .blocks = {}, .unpruned = {}});
    for (const int64_t cached : cached_) costs.steps.push_back({.cached = cached, .blocks = {}});
    for (const int64_t block : kinds_.examples)
      with_block(shards_, *machine_.backend, compute_, block,
                 [&](const Stage& stage) { time(stage, costs, together); });
    const std::vector<int64_t> rows = saved_row_sizes();
    with_block(shards_, *machine_.backend, compute_, config_.layers * kBlocksOfLayer - 1, [&](const Stage& stage) {
      together();
      costs.head = measure_head_curve(*machine_.backend, stage, compute_, rows, conditions());
    });
    return costs;
  }

 private:
  bool fits(int64_t tokens) const {
    return std::all_of(kinds_.examples.begin(), kinds_.examples.end(), [&](int64_t block) {
      const StageMemory cost = stage_memory(config_, layers_of_blocks(block, block + 1), compute_, compute_, tokens, 0);
      return 2 * cost.total_bytes(kBuffers) <= machine_.backend->free_bytes();
    });
  }
  void time(const Stage& stage, HostCosts& costs, const std::function<void()>& together) const {
    const auto curve = [&](TimedSamples samples, const std::vector<int64_t>& sizes) {
      together();
      return measure_stage_curve(*machine_.backend, stage, compute_, samples, sizes, conditions());
    };
    // A feed-forward does not know which tokens belong together.
    const bool once = !stage.layers().has_mixer(stage.layers().first);
    const size_t kind = costs.samples.front().blocks.size();
    const bool prunes = !once && prunes_tokens(config_, stage.layers());
    for (SampleCosts& one : costs.samples) {
      const bool again = once && &one != &costs.samples.front();
      one.blocks.push_back(again ? costs.samples.front().blocks[kind]
                                 : curve({.length = one.length, .last_positions = true}, token_sizes_));
      if (prunes) one.unpruned = curve({.length = one.length}, token_sizes_);
    }
    std::vector<int64_t> sizes = saved_sequence_sizes(machine_.cuda);
    for (StepCosts& one : costs.steps) {  // longer ones, of which there may be fewer, follow
      std::erase_if(sizes, [&](int64_t sequences) { return sequences > max_timed_sequences(one.cached); });
      const bool again = once && &one != &costs.steps.front();
      one.blocks.push_back(again ? first_of(costs.steps.front().blocks[kind], sizes.size())
                                 : curve({.cached = one.cached}, sizes));
    }
  }

  TimedConditions conditions() const {
    return {.warm_seconds = machine_.cuda ? kWarmSeconds : 0, .others = others_ ? &*others_ : nullptr};
  }

  const Machine& machine_;
  const ShardSet& shards_;
  const ModelConfig& config_;
  const DType compute_;
  const BlockKinds kinds_;
  std::vector<int64_t> lengths_, cached_, token_sizes_;
  std::optional<OtherWeights> others_;  // on CPUs
};

// The mean of the ranks' times, on rank 0.
void average(HostCosts& costs, bool measured, const MpiWorld& world, double timeout) {
  std::vector<double> mine;
  if (measured)
    for_each_curve(
        costs, [&](const CostCurve& curve) { mine.insert(mine.end(), curve.seconds.begin(), curve.seconds.end()); });
  std::vector<double> sum;
  double ranks = 0;
  for (const std::vector<double>& one : world.gather_values(mine, 0, timeout, "costs of blocks")) {
    if (one.empty()) continue;
    if (ranks > 0 && one.size() != sum.size())
      throw Error(ExitCode::kUnavailable,
                  "--save: ranks measured different sizes, because their GPUs have different free memory: expected "
                  "GPUs that are equally free");
    sum.resize(one.size());
    for (size_t i = 0; i < one.size(); ++i) sum[i] += one[i];
    ++ranks;
  }
  if (world.rank() != 0) return;
  expect(mine.size() == sum.size(), "doctor --save: rank 0 measures whenever others do");
  auto next = sum.begin();
  for_each_curve(costs, [&](CostCurve& curve) {
    for (double& seconds : curve.seconds) seconds = *next++ / ranks;
  });
}

std::vector<LinkCosts> links_of(const Examination& examination) {
  std::map<std::string, std::vector<LinkCosts>> found;
  for (size_t rank = 0; rank < examination.trials.size(); ++rank) {
    const TrialFacts& trial = examination.trials[rank];
    if (trial.bytes_per_second == 0) continue;
    const std::string way = examination.way_to_next(rank);
    found[way].push_back({way, trial.bytes_per_second, trial.round_trip_seconds});
  }
  std::vector<LinkCosts> links;
  for (auto& [way, all] : found) {
    LinkCosts mean{.way = way};
    for (const LinkCosts& one : all) {
      mean.bytes_per_second += one.bytes_per_second / static_cast<double>(all.size());
      mean.round_trip_seconds += one.round_trip_seconds / static_cast<double>(all.size());
    }
    links.push_back(std::move(mean));
  }
  return links;
}

// The numbers of ranks on a host that are timed computing at a time, of `local` ranks.
std::vector<int64_t> timed_rank_counts(int64_t local, bool cuda) {
  if (cuda) return {local};
  std::vector<int64_t> counts;
  for (int64_t ranks = 1; ranks <= local; ranks = ranks < kConsecutiveCounts ? ranks + 1 : 2 * ranks)
    counts.push_back(ranks);
  add_once(counts, local);
  return counts;
}

}  // namespace

MachineCosts measure_machine(const Options& options, const MpiWorld& world, const Machine& machine, ShardSet& shards,
                             const Examination& examination) {
  if (machine.cuda && !machine.devices.device_of.empty())
    throw Error(ExitCode::kUnavailable, "--save: ranks share a GPU: expected a GPU for each rank");
  const double timeout = kDiskFactor * options.timeout_seconds;
  const DType compute = shards.choose_dtype(options.dtype);
  shards.choose_cache_dtype(options.cache_dtype, compute);
  MachineCosts costs{.program = kVersionText,
                     .device = machine.backend->description(),
                     .transport = machine.transport_name(),
                     .cuda = machine.cuda,
                     .compute = compute,
                     .products_in_fp8 = shards.products_in_fp8(),
                     .host_ranks = world.local_size(),
                     .hosts = {},
                     .links = {}};
  const int64_t local = static_cast<int64_t>(-world.smallest(-world.local_size(), timeout));
  for (const int64_t ranks : timed_rank_counts(local, machine.cuda)) {
    world.watchdog().enter({.phase = Phase::kPrepare, .limit_seconds = timeout});
    // As a run does in which that number of ranks computes at a time.
    const Machine fewer = machine.cuda ? Machine() : choose_machine(options, world, ranks);
    const Machine& timed = machine.cuda ? machine : fewer;
    const bool takes_part = world.local_rank() < ranks;
    const MpiGroup group(world, takes_part ? 1 : 0);
    HostCosts one{.ranks = ranks, .samples = {}, .steps = {}, .head = {}};
    if (takes_part)
      one = HostTimer(options, timed, shards, compute, ranks).measure(ranks, [&] {
        group.barrier(timeout, "measurement of blocks");
        group.watchdog().enter({.phase = Phase::kPrepare, .limit_seconds = timeout});
      });
    average(one, takes_part, world, timeout);
    costs.hosts.push_back(std::move(one));
  }
  if (world.rank() != 0) return costs;
  const RankFacts& first = examination.ranks.front();
  costs.processors = first.share * first.ranks_on_host;
  costs.memory_bytes = machine.cuda ? machine.backend->free_bytes() : first.free_memory_bytes;
  costs.links = links_of(examination);
  return costs;
}

}  // namespace lfm2
