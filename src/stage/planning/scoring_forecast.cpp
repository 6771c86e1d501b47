// The plan is the run's own. Its time comes from a replay of its schedule, with the measured costs of every
// micro-batch.
#include "stage/planning/scoring_forecast.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "base/error.h"
#include "stage/model/memory_plan.h"
#include "stage/model/token_pruning.h"
#include "stage/planning/block_times.h"

namespace lfm2 {

namespace {

// A longer job is extrapolated from two shorter ones.
constexpr int64_t kMaxReplayed = 4096;

int64_t ranks_on_host(const MachineCosts& machine, int64_t ranks) { return std::min(ranks, machine.host_ranks); }

const LinkCosts* find_link(const MachineCosts& machine, bool other_host) {
  const LinkCosts* slowest = nullptr;
  for (const LinkCosts& link : machine.links)
    if ((link.way == kOtherHost) == other_host &&
        (slowest == nullptr || link.bytes_per_second < slowest->bytes_per_second))
      slowest = &link;
  return slowest;
}

// The micro-batches of one replica, and what they take in each virtual stage.
class ReplicaReplay {
 public:
  ReplicaReplay(const BlockTimes& times, const ModelConfig& config, const ScoringDemand& demand,
                const std::vector<LayerRange>& cut, const MicroBatches& batches)
      : times_(times), config_(config), demand_(demand), cut_(cut) {
    // A micro-batch goes to the replica that has had the fewest tokens. The one with the most decides.
    std::vector<std::vector<MicroBatch>> of_replica(static_cast<size_t>(demand.replicas));
    using Load = std::pair<int64_t, size_t>;  // tokens, replica
    std::set<Load> loads;
    for (size_t replica = 0; replica < of_replica.size(); ++replica) loads.emplace(0, replica);
    for (int64_t i = 0; i < batches.plan().micro_batches; ++i) {
      const auto [tokens, replica] = *loads.begin();
      loads.erase(loads.begin());
      loads.emplace(tokens + batches[i].tokens, replica);
      of_replica[replica].push_back(batches[i]);
    }
    batches_ = std::move(of_replica[loads.rbegin()->second]);
  }

  Replayed replay(const StageTime& transfer, double result_seconds, std::vector<ReplayedSpan>* timeline) {
    const auto at = [&](int64_t i) -> const MicroBatch& { return batches_[static_cast<size_t>(i)]; };
    const PipelineShape shape{.stages = demand_.stages, .pieces = std::ssize(cut_) / demand_.stages};
    return lfm2::replay(shape, std::ssize(batches_),
                        {.forward = [&](int64_t virtual_stage,
                                        int64_t i) { return times_of(at(i))[static_cast<size_t>(virtual_stage)]; },
                         .transfer = [&](int64_t i) { return transfer.seconds(static_cast<double>(at(i).tokens)); },
                         .head = [&](int64_t i) { return times_.head(rows_of(at(i)).rows * head_share()); },
                         .results = [&](int64_t i) { return result_seconds * static_cast<double>(at(i).tokens); },
                         .on_computed =
                             [&](const ReplayedSpan& span) {
                               if (timeline != nullptr && std::ssize(*timeline) < kMaxTimeline)
                                 timeline->push_back(span);
                             }},
                        demand_.devices);
  }

  // The seconds of `samples` samples in all blocks before `end` and, if these are all, in the head.
  double seconds_of(int64_t samples, int64_t end) const {
    const MicroBatch batch{.samples = samples, .tokens = samples * demand_.length};
    double sum = 0;
    for (int64_t block = 0; block < end; ++block) sum += times_.of(block, rows_of(batch));
    return end < config_.layers * kBlocksOfLayer ? sum : sum + times_.head(rows_of(batch).rows * head_share());
  }

 private:
  // Results that are hidden states need no LM head.
  double head_share() const { return rows_of_tokens(demand_) > 0 ? 1 : 0; }

  BlockTimes::MicroBatchRows rows_of(const MicroBatch& batch) const {
    const bool last = demand_.results.of_last_positions();
    const auto samples = static_cast<double>(batch.samples);
    const double of_sample = static_cast<double>(std::min(demand_.length, tail_length(config_)));
    return {.length = demand_.length,
            .tokens = static_cast<double>(batch.tokens),
            .kept = batch.samples > 0 ? samples * of_sample : 1,  // a part that ends no sample keeps one token
            .rows = last ? samples : static_cast<double>(batch.tokens),
            .prunes = last};
  }

  // [virtual stages]. Most micro-batches are alike.
  const std::vector<double>& times_of(const MicroBatch& batch) {
    std::vector<double>& times = known_[{batch.tokens, batch.samples}];
    if (!times.empty()) return times;
    const BlockTimes::MicroBatchRows rows = rows_of(batch);
    for (const LayerRange& range : cut_) {
      double sum = 0;
      for (int64_t block = first_block(range); block < end_block(range); ++block) sum += times_.of(block, rows);
      times.push_back(sum);
    }
    return times;
  }

  const BlockTimes& times_;
  const ModelConfig& config_;
  const ScoringDemand& demand_;
  const std::vector<LayerRange>& cut_;
  std::vector<MicroBatch> batches_;
  std::map<std::pair<int64_t, int64_t>, std::vector<double>> known_;
};

std::vector<StageMemory> memory_of(const ModelConfig& config, const ScoringForecast& plan, int64_t tokens) {
  std::vector<StageMemory> ranks;
  for (int64_t stage = 0; stage < plan.demand.stages; ++stage)
    ranks.push_back(stage_memory(config, pieces_of(plan.cut, plan.demand.stages, stage), plan.demand.compute,
                                 plan.demand.compute, tokens, plan.batches.max_rows(plan.demand.results)));
  return ranks;
}

// The largest micro-batch that a run considers for loaded stages: it leaves half of the free memory.
int64_t largest_target(const MachineCosts& machine, const ModelConfig& config, const ScoringForecast& plan) {
  const ScoringDemand& demand = plan.demand;
  const auto buffers = static_cast<uint64_t>(Schedule::max_buffers(plan.shape(), plan.batches.micro_batches));
  int64_t tokens = max_measured_target(demand.compute, demand.results, demand.length);
  const auto fits = [&] {
    const std::vector<StageMemory> ranks = memory_of(config, plan, tokens);
    return std::all_of(ranks.begin(), ranks.end(), [&](const StageMemory& cost) {
      return 2 * (cost.total_bytes(buffers) - cost.weight_bytes) + cost.weight_bytes <= machine.memory_bytes;
    });
  };
  while (machine.memory_bytes > 0 && tokens > kMaxCudaTarget && !fits()) tokens /= 2;
  return tokens;
}

void add_memory(const MachineCosts& machine, const ModelConfig& config, ScoringForecast& plan) {
  const auto buffers = static_cast<uint64_t>(Schedule::max_buffers(plan.shape(), plan.batches.micro_batches));
  uint64_t sum = 0;
  for (const StageMemory& cost : memory_of(config, plan, plan.batches.max_tokens)) {
    plan.memory_bytes = std::max(plan.memory_bytes, cost.total_bytes(buffers));
    sum += cost.total_bytes(buffers);
  }
  if (machine.memory_bytes == 0) return;
  plan.fits = machine.cuda ? plan.memory_bytes <= machine.memory_bytes
                           : sum * static_cast<uint64_t>(plan.demand.pipelines_on_host) <= machine.memory_bytes;
}

// The plan that a run makes.
struct RunPlan {
  PipelineChoice choice;
  MicroBatches::Size size;
};
RunPlan plan_run(const MachineCosts& machine, const ModelConfig& config, const BlockTimes& times,
                 ScoringForecast& forecast, const SampleOffsets& offsets) {
  const ScoringDemand& demand = forecast.demand;
  const int64_t tokens = (offsets.back() + demand.replicas - 1) / demand.replicas;
  const BlockCosts costs =
      costs_of_job(config, demand, times.as_measured(demand.length, demand.results.of_last_positions()));
  RunPlan plan{.choice = demand.chooses_cut()
                             ? choose(costs, pipeline_job(config, demand, tokens, max_first_target(demand.cuda)))
                             : given_choice(config, demand, tokens),
               .size = {}};
  forecast.cut = plan.choice.cut;
  plan.size = micro_batch_size(config, demand, plan.choice.target_tokens);
  if (!demand.chooses_again()) return plan;
  forecast.batches = MicroBatches(offsets, {}, plan.size).plan();
  const int64_t largest = largest_target(machine, config, forecast);
  const PipelineJob job = pipeline_job(config, demand, tokens, largest);
  plan.choice = choose_again(config, demand, costs_of_cut(costs, job, forecast.cut), tokens, largest);
  plan.size = micro_batch_size(config, demand, plan.choice.target_tokens);
  return plan;
}

Replayed replay_samples(const BlockTimes& times, const ModelConfig& config, const ScoringForecast& forecast,
                        const RunPlan& plan, const StageTime& transfer, int64_t samples,
                        std::vector<ReplayedSpan>* timeline) {
  const ScoringDemand& demand = forecast.demand;
  const SampleOffsets offsets = SampleOffsets::equally_long(samples, demand.length);
  const MicroBatches batches(offsets, {}, plan.size);
  const PipelineJob job = pipeline_job(config, demand, offsets.back(), demand.length);
  ReplicaReplay replica(times, config, demand, forecast.cut, batches);
  Replayed replayed = replica.replay(transfer, result_seconds(job), timeline);
  if (const LateParts late = plan.choice.late; late.samples > 0) {
    const int64_t end = config.layers * kBlocksOfLayer, whole = batches[0].samples,
                  rest = batches[batches.plan().micro_batches - 1].samples;
    if (late.samples >= rest) return replayed;
    const double early = replica.seconds_of(rest, late.layer * kBlocksOfLayer) / replica.seconds_of(rest, end);
    replayed.seconds = late_seconds(job,
                                    {.micro_batches = batches.plan().micro_batches,
                                     .whole = whole,
                                     .rest = rest,
                                     .second = late.samples,
                                     .early = early},
                                    [&](int64_t part) { return replica.seconds_of(part, end); });
  }
  return replayed;
}

}  // namespace

double ScoringForecast::idle_share() const {
  const double mean = std::accumulate(busy.begin(), busy.end(), 0.0) / static_cast<double>(busy.size());
  return seconds > 0 ? 1 - mean / seconds : 0;
}

StageTime transfer_cost(const MachineCosts& machine, const ModelConfig& config, JobRanks ranks) {
  if (ranks.stages == 1) return {};
  const bool several_hosts = ranks.stages > machine.host_ranks;
  const LinkCosts* link = find_link(machine, several_hosts);
  if (link == nullptr) link = find_link(machine, !several_hosts);
  if (link == nullptr)
    throw Error(ExitCode::kData,
                fmt::format("the machine's costs have no link between ranks, {} stages need one: write them again with "
                            "lfm2_stage doctor --save on at least two ranks",
                            ranks.stages));
  const auto row_bytes = static_cast<double>(config.hidden) * static_cast<double>(size_bytes(machine.compute));
  return {.fixed = link->round_trip_seconds / 2, .per_token = row_bytes / link->bytes_per_second};
}

std::vector<std::string> assumptions(const MachineCosts& machine, JobRanks ranks) {
  std::vector<std::string> found;
  if (ranks.count() <= machine.host_ranks) return found;
  found.push_back(fmt::format("{} hosts like the measured one, each with {} ranks",
                              (ranks.count() + machine.host_ranks - 1) / machine.host_ranks, machine.host_ranks));
  if (ranks.stages > machine.host_ranks && find_link(machine, true) == nullptr)
    found.push_back("links between hosts as fast as those within the measured one, which had no other");
  return found;
}

ScoringDemand demand_on(const MachineCosts& machine, const ModelConfig& config, JobRanks ranks) {
  const int64_t local = ranks_on_host(machine, ranks.count());
  const int64_t pipelines = std::clamp<int64_t>(local / ranks.stages, 1, ranks.replicas);
  const int64_t share = machine.processors / (machine.cuda ? pipelines : local);
  return {.stages = ranks.stages,
          .replicas = ranks.replicas,
          .compute = machine.compute,
          .cuda = machine.cuda,
          .transfer =
              estimate_transfer(config, machine.compute, machine.transport == "peer copies" ? kPeerLink : kNcclLink),
          .pipelines_on_host = pipelines,
          .result_threads = result_thread_count(machine.cuda, static_cast<int>(std::max<int64_t>(1, share)))};
}

ScoringForecast forecast_scoring(const MachineCosts& machine, const ModelConfig& config, const ScoringDemand& demand,
                                 int64_t samples) {
  const JobRanks ranks{.stages = demand.stages, .replicas = demand.replicas};
  const BlockTimes times(machine, config, ranks_on_host(machine, ranks.count()));
  const StageTime transfer = transfer_cost(machine, config, ranks);
  ScoringForecast forecast{.demand = demand};
  const SampleOffsets offsets = SampleOffsets::equally_long(samples, demand.length);
  const RunPlan plan = plan_run(machine, config, times, forecast, offsets);
  forecast.batches = MicroBatches(offsets, {}, plan.size).plan();
  forecast.batches.late = plan.choice.late;
  if (demand.results.score) forecast.batches.max_scored = forecast.batches.max_tokens;
  const auto replayed = [&](int64_t count, std::vector<ReplayedSpan>* timeline) {
    return replay_samples(times, config, forecast, plan, transfer, count, timeline);
  };
  const int64_t most = std::max<int64_t>(
      2, kMaxReplayed * demand.replicas * samples / std::max<int64_t>(1, forecast.batches.micro_batches));
  if (samples <= most) {
    Replayed all = replayed(samples, &forecast.timeline);
    forecast.seconds = all.seconds;
    forecast.busy = std::move(all.busy);
  } else {
    const Replayed half = replayed(most / 2, nullptr), whole = replayed(most, &forecast.timeline);
    const double more = static_cast<double>(samples - most) / static_cast<double>(most - most / 2);
    forecast.seconds = whole.seconds + more * (whole.seconds - half.seconds);
    for (size_t stage = 0; stage < whole.busy.size(); ++stage)
      forecast.busy.push_back(whole.busy[stage] + more * (whole.busy[stage] - half.busy[stage]));
  }
  add_memory(machine, config, forecast);
  return forecast;
}

std::vector<ScoringForecast> forecast_layouts(const MachineCosts& machine, const ModelConfig& config,
                                              const ScoringDemand& base, int64_t samples, int64_t ranks) {
  std::vector<ScoringForecast> found;
  struct Layout {
    int64_t virtual_stages;
    bool balance;
  };
  constexpr std::array<Layout, 3> kLayouts{{{1, false}, {1, true}, {0, false}}};
  for (int64_t stages = 1; stages <= std::min(ranks, config.layers); ++stages) {
    if (ranks % stages != 0) continue;
    ScoringDemand demand = demand_on(machine, config, {.stages = stages, .replicas = ranks / stages});
    demand.length = base.length;
    demand.results = base.results;
    demand.micro_batch = base.micro_batch;
    std::vector<ScoringForecast> forecasts;
    for (const Layout& layout : kLayouts) {
      if (stages == 1 && layout.virtual_stages + layout.balance != 1) continue;
      demand.virtual_stages = layout.virtual_stages;
      demand.balance = layout.balance;
      forecasts.push_back(forecast_scoring(machine, config, demand, samples));
    }
    found.push_back(std::move(*std::min_element(forecasts.begin(), forecasts.end(), [](const auto& a, const auto& b) {
      return std::tuple(!a.fits, a.seconds) < std::tuple(!b.fits, b.seconds);
    })));
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return std::tuple(!a.fits, a.seconds) < std::tuple(!b.fits, b.seconds);
  });
  return found;
}

std::string layout_options(const ScoringDemand& demand) {
  std::vector<std::string> words;
  if (demand.replicas > 1) words.push_back(fmt::format("--replicas {}", demand.replicas));
  if (demand.stages > 1 && demand.virtual_stages != 1)
    words.push_back(fmt::format("--virtual-stages {}", demand.virtual_stages));
  if (demand.stages > 1 && demand.balance) words.emplace_back("--balance");
  if (!demand.layer_counts.empty()) words.push_back(fmt::format("--layers {}", fmt::join(demand.layer_counts, ",")));
  if (demand.micro_batch > 0) words.push_back(fmt::format("--micro-batch {}", demand.micro_batch));
  return words.empty() ? "none" : fmt::format("{}", fmt::join(words, " "));
}

}  // namespace lfm2
