// A simulation of the first stage's loop: it sends steps while it may, and waits for the oldest one's tokens otherwise.
#include "stage/planning/generation_forecast.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>
#include <tuple>

#include "base/error.h"
#include "stage/generation/step_limits.h"
#include "stage/model/caches.h"
#include "stage/model/memory_plan.h"
#include "stage/model/token_pruning.h"
#include "stage/planning/block_times.h"

namespace lfm2 {

namespace {

constexpr int64_t kMaxRounds = 4;    // of all slots that are simulated
constexpr double kCacheShare = 0.9;  // of the memory that weights and activations leave

// Equal prompts, all of which wait at the start.
class EqualRequests : public RequestSource {
 public:
  EqualRequests(int64_t count, int64_t length, int64_t new_tokens)
      : count_(count), length_(length), new_tokens_(new_tokens) {}
  int64_t waiting() const override { return count_ - next_; }
  bool ended() const override { return next_ == count_; }
  std::optional<Request> next() override {
    if (ended()) return {};
    Request request{.sample = static_cast<int32_t>(next_++), .max_new = new_tokens_};
    request.prompt.assign(static_cast<size_t>(length_), 0);
    return request;
  }

 private:
  int64_t count_, length_, new_tokens_, next_ = 0;
};

// The sequences of a replica, as far as the sizes of steps depend on them.
class SimulatedSequences {
 public:
  SimulatedSequences(const GenerationDemand& demand, int64_t slots, int64_t sequences)
      : demand_(demand),
        of_slot_(static_cast<size_t>(slots)),
        drawn_(static_cast<size_t>(sequences)),
        begun_(static_cast<size_t>(sequences), -1) {}

  // The rows of the step; its draws are kept until returned() has their tokens.
  BlockTimes::StepRows enter(const Step& step, int64_t tail, double now) {
    for (const Admission& one : step.admitted) {
      Sequence& sequence = of_slot_[static_cast<size_t>(one.slot)];
      sequence = {.sample = one.request.sample, .left = one.num_tokens - one.num_cached, .position = one.num_cached};
      if (double& begun = begun_[static_cast<size_t>(sequence.sample)]; begun < 0) begun = now;
    }
    BlockTimes::StepRows rows{.length = demand_.length};
    std::vector<int32_t>& draws = draws_.emplace_back();
    for (const StepEntry& entry : step.entries) {
      Sequence& sequence = of_slot_[static_cast<size_t>(entry.slot)];
      if (sequence.left > 0) {
        rows.prompts += entry.count;
        rows.kept += static_cast<double>(std::min<int64_t>(entry.count, tail));
        sequence.left -= entry.count;
      } else {
        ++rows.decoding;
        rows.cached += static_cast<double>(sequence.position);
      }
      sequence.position += entry.count;
      if (sequence.left > 0) continue;
      ++rows.rows;
      draws.push_back(sequence.sample);
    }
    if (rows.decoding > 0) rows.cached /= rows.decoding;
    return rows;
  }

  // The tokens of the oldest step.
  std::vector<DrawnToken> returned(double now) {
    std::vector<DrawnToken> tokens;
    for (const int32_t sample : draws_.front()) {
      DrawnToken& token = tokens.emplace_back();
      int64_t& drawn = drawn_[static_cast<size_t>(sample)];
      if (drawn++ == 0) first_token_seconds_ += now - begun_[static_cast<size_t>(sample)];
      if (drawn == demand_.new_tokens) token.ends = FinishReason::kLength;
    }
    draws_.pop_front();
    return tokens;
  }
  double first_token_seconds() const {
    return first_token_seconds_ / static_cast<double>(std::max<size_t>(1, drawn_.size()));
  }

 private:
  struct Sequence {
    int32_t sample = 0;
    int64_t left = 0, position = 0;  // prompt tokens still to compute; tokens computed
  };

  const GenerationDemand& demand_;
  std::vector<Sequence> of_slot_;           // [slots]
  std::vector<int64_t> drawn_;              // [sequences]
  std::vector<double> begun_;               // [sequences]; below 0: not yet
  std::deque<std::vector<int32_t>> draws_;  // samples, of the steps in flight
  double first_token_seconds_ = 0;
};

// The stages of a replica: when each is free, and how long each step takes it.
class SimulatedStages {
 public:
  SimulatedStages(const BlockTimes& times, const StageTime& transfer, GenerationForecast& forecast)
      : times_(times), transfer_(transfer), forecast_(forecast), free_(forecast.cut.size()) {
    forecast.busy.resize(forecast.cut.size());
  }

  // Returns when the tokens of a step that is sent at `now` are back on the first stage.
  double run(const BlockTimes::StepRows& rows, double now) {
    double at = now;
    for (size_t stage = 0; stage < free_.size(); ++stage) {
      double seconds = stage + 1 == free_.size() ? times_.head(rows.rows) : 0;
      for (int64_t block = first_block(forecast_.cut[stage]); block < end_block(forecast_.cut[stage]); ++block)
        seconds += times_.of(block, rows);
      const double start = std::max(at, free_[stage]);
      free_[stage] = start + seconds;
      forecast_.busy[stage] += seconds;
      if (std::ssize(forecast_.timeline) < kMaxTimeline)
        forecast_.timeline.push_back({.stage = static_cast<int64_t>(stage),
                                      .piece = 0,
                                      .micro_batch = forecast_.steps,
                                      .head = false,
                                      .start = start,
                                      .end = free_[stage]});
      at = free_[stage] + (free_.size() > 1 ? transfer_.seconds(rows.decoding + rows.prompts) : 0);
    }
    ++forecast_.steps;
    return free_.size() > 1 ? free_.back() + transfer_.fixed : free_.back();
  }

 private:
  const BlockTimes& times_;
  const StageTime transfer_;
  GenerationForecast& forecast_;
  std::vector<double> free_;  // [stages]
};

// Pages for all sequences at a time, or those that fit. Sets the forecast's memory.
void plan_caches(const MachineCosts& machine, const ModelConfig& config, ScheduleLimits& limits,
                 GenerationForecast& forecast) {
  const GenerationDemand& demand = forecast.demand;
  const int64_t longest = demand.length + demand.new_tokens - 1;
  CacheShape& shape = limits.caches;
  shape.page_size = std::min(demand.page_size, std::max<int64_t>(1, longest));
  const int64_t of_sequence = std::max<int64_t>(1, pages_for(longest, shape.page_size));
  shape.window = config.window;
  shape.pages = of_sequence * shape.slots;
  const int64_t tokens = limits.max_rows() + limits.prompt_tokens;
  const auto sharing =
      static_cast<double>(machine.cuda ? 1 : std::min(machine.host_ranks, demand.step.stages * demand.replicas));
  const double room = kCacheShare * static_cast<double>(machine.memory_bytes) / sharing;
  std::vector<uint64_t> others;  // [stages]
  for (const LayerRange& layers : forecast.cut)
    others.push_back(stage_memory(config, layers, machine.compute, machine.compute, tokens, limits.max_rows())
                         .total_bytes(kBuffers));
  // Of the fullest stage.
  const auto bytes_of = [&](int64_t pages) {
    shape.set_pages(pages, limits.prompt_tokens);
    uint64_t most = 0;
    for (size_t stage = 0; stage < others.size(); ++stage)
      most = std::max(most, others[stage] + cache_bytes(config, forecast.cut[stage], machine.compute, shape));
    return most;
  };
  const int64_t wanted = shape.pages,
                fitting = machine.memory_bytes > 0 ? fitting_pages(wanted, room, bytes_of) : wanted;
  if (fitting < of_sequence) forecast.fits = false;
  forecast.memory_bytes = std::max(forecast.memory_bytes, bytes_of(std::max(fitting, of_sequence)));
  limits.counted_prefixes = longest;
}

// As a run cuts: for a step with one token of each sequence, when half of the new tokens are generated.
std::vector<LayerRange> cut_of(const BlockTimes& times, const ModelConfig& config, const GenerationDemand& demand,
                               int64_t sequences) {
  if (!demand.balance || demand.step.stages == 1)
    return given_partition(config.layers, demand.step.stages, demand.layer_counts);
  const auto rows = static_cast<double>(sequences);
  const BlockTimes::StepRows step{
      .decoding = rows,
      .cached = static_cast<double>(std::min(demand.length + demand.new_tokens / 2, config.max_positions - 1)),
      .rows = rows,
      .length = demand.length};
  std::vector<double> seconds;
  for (int64_t block = 0; block < config.layers * kBlocksOfLayer; ++block) seconds.push_back(times.of(block, step));
  seconds.back() += times.head(rows);
  return balanced_partition(seconds, demand.step.stages);
}

// Simulates the job with this number of sequences in a replica, and adds what it takes to the forecast.
void simulate(const BlockTimes& times, const StageTime& transfer, const ScheduleLimits& limits, int64_t tail,
              int64_t sequences, GenerationForecast& forecast) {
  const GenerationDemand& demand = forecast.demand;
  EqualRequests requests(sequences, demand.length, demand.new_tokens);
  SimulatedSequences simulated(demand, limits.caches.slots, sequences);
  SimulatedStages stages(times, transfer, forecast);
  double now = 0;
  Scheduler scheduler(requests, limits, {}, [&now] { return now; });
  std::deque<double> in_flight;  // when the steps' tokens return
  while (true) {
    if (const std::optional<ScheduledStep> next = scheduler.next()) {
      if (next->step.entries.empty()) continue;
      forecast.largest_step = std::max(forecast.largest_step, std::ssize(next->step.entries));
      in_flight.push_back(stages.run(simulated.enter(next->step, tail, now), now));
      continue;
    }
    if (in_flight.empty()) break;
    now = std::max(now, in_flight.front());
    in_flight.pop_front();
    scheduler.on_tokens(simulated.returned(now));
  }
  expect(scheduler.finished(), "forecast_generation: the scheduler has nothing to do before the end");
  forecast.seconds = now;
  forecast.first_token_seconds = simulated.first_token_seconds();
}

}  // namespace

double GenerationForecast::idle_share() const {
  const double mean = std::accumulate(busy.begin(), busy.end(), 0.0) / static_cast<double>(busy.size());
  return seconds > 0 ? 1 - mean / seconds : 0;
}

GenerationForecast forecast_generation(const MachineCosts& machine, const ModelConfig& config,
                                       const GenerationDemand& demand) {
  const JobRanks ranks{.stages = demand.step.stages, .replicas = demand.replicas};
  // A sequence is on one rank at a time, so no more ranks than sequences compute at a time.
  const int64_t computing =
      std::min({ranks.count(), machine.host_ranks,
                demand.step.max_sequences > 0 ? std::min(demand.sequences, demand.step.max_sequences * demand.replicas)
                                              : demand.sequences});
  const BlockTimes times(machine, config, computing);
  const StageTime transfer = transfer_cost(machine, config, ranks);
  const int64_t sequences = (demand.sequences + demand.replicas - 1) / demand.replicas;
  GenerationForecast forecast{.demand = demand};
  ScheduleLimits limits;
  set_limits(demand.step, sequences, sequences * demand.length, limits);
  forecast.cut = cut_of(times, config, demand, limits.max_sequences);
  plan_caches(machine, config, limits, forecast);

  const int64_t tail = tail_length(config) > 0 ? tail_length(config) : demand.length;
  // A long job is extrapolated from two shorter ones.
  const int64_t most = kMaxRounds * limits.caches.slots;
  if (sequences <= most) {
    simulate(times, transfer, limits, tail, sequences, forecast);
    return forecast;
  }
  GenerationForecast half = forecast;
  simulate(times, transfer, limits, tail, most / 2, half);
  simulate(times, transfer, limits, tail, most, forecast);
  const double more = static_cast<double>(sequences - most) / static_cast<double>(most - most / 2);
  forecast.seconds += more * (forecast.seconds - half.seconds);
  forecast.steps += std::llround(more * static_cast<double>(forecast.steps - half.steps));
  for (size_t stage = 0; stage < forecast.busy.size(); ++stage)
    forecast.busy[stage] += more * (forecast.busy[stage] - half.busy[stage]);
  return forecast;
}

std::vector<GenerationForecast> forecast_layouts(const MachineCosts& machine, const ModelConfig& config,
                                                 const GenerationDemand& base, int64_t ranks) {
  std::vector<GenerationForecast> found;
  const auto faster = [](const GenerationForecast& a, const GenerationForecast& b) {
    return std::tuple(!a.fits, a.seconds) < std::tuple(!b.fits, b.seconds);
  };
  for (int64_t stages = 1; stages <= std::min(ranks, config.layers); ++stages) {
    if (ranks % stages != 0) continue;
    GenerationDemand demand = base;
    demand.step.stages = stages;
    demand.replicas = ranks / stages;
    demand.layer_counts.clear();
    demand.balance = false;
    GenerationForecast best = forecast_generation(machine, config, demand);
    demand.balance = true;
    if (stages > 1)
      if (GenerationForecast balanced = forecast_generation(machine, config, demand); faster(balanced, best))
        best = std::move(balanced);
    found.push_back(std::move(best));
  }
  std::stable_sort(found.begin(), found.end(), faster);
  return found;
}

std::string layout_options(const GenerationDemand& demand) {
  return layout_options(ScoringDemand{.stages = demand.step.stages,
                                      .replicas = demand.replicas,
                                      .micro_batch = demand.step.micro_batch,
                                      .layer_counts = demand.layer_counts,
                                      .balance = demand.balance});
}

}  // namespace lfm2
