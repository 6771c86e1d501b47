// The command plan --machine: time, memory and layout of a job on a machine whose costs doctor --save measured.
#include <fmt/format.h>

#include <algorithm>

#include "base/bytes_text.h"
#include "base/error.h"
#include "base/json/json.h"
#include "stage/planning/generation_forecast.h"
#include "stage/planning/machine_costs.h"
#include "stage/planning/scoring_forecast.h"
#include "stage/planning/timeline.h"
#include "weights-tools/commands/commands.h"

namespace lfm2 {

namespace {

constexpr size_t kTimelineWidth = 96;

// A forecast of either kind, as it is printed.
struct PlanRow {
  int64_t ranks = 1, replicas = 1;
  std::vector<LayerRange> cut = {};
  PipelineShape shape = {};
  int64_t units = 0;         // micro-batches of all replicas, or steps of one
  int64_t largest_unit = 0;  // samples of the largest
  double seconds = 0, per_second = 0, idle = 0, first_token_seconds = 0;
  uint64_t memory_bytes = 0;
  bool fits = true;
  std::string options = {};
  std::vector<double> busy = {};
  std::vector<ReplayedSpan> timeline = {};
};

PlanRow row_of(const ScoringForecast& forecast, int64_t samples) {
  return {.ranks = forecast.demand.stages * forecast.demand.replicas,
          .replicas = forecast.demand.replicas,
          .cut = forecast.cut,
          .shape = forecast.shape(),
          .units = forecast.batches.micro_batches,
          .largest_unit = forecast.batches.max_samples,
          .seconds = forecast.seconds,
          .per_second = static_cast<double>(samples) / forecast.seconds,
          .idle = forecast.idle_share(),
          .memory_bytes = forecast.memory_bytes,
          .fits = forecast.fits,
          .options = layout_options(forecast.demand),
          .busy = forecast.busy,
          .timeline = forecast.timeline};
}

PlanRow row_of(const GenerationForecast& forecast) {
  return {.ranks = forecast.demand.step.stages * forecast.demand.replicas,
          .replicas = forecast.demand.replicas,
          .cut = forecast.cut,
          .shape = {.stages = forecast.demand.step.stages},
          .units = forecast.steps,
          .largest_unit = forecast.largest_step,
          .seconds = forecast.seconds,
          .per_second = forecast.tokens_per_second(),
          .idle = forecast.idle_share(),
          .first_token_seconds = forecast.first_token_seconds,
          .memory_bytes = forecast.memory_bytes,
          .fits = forecast.fits,
          .options = layout_options(forecast.demand),
          .busy = forecast.busy,
          .timeline = forecast.timeline};
}

// The plans for one number of ranks: the job as the options have it, then every layout, the best first.
struct Plans {
  std::optional<PlanRow> given;
  std::vector<PlanRow> layouts;
};

class MachinePlanner {
 public:
  MachinePlanner(const PlanOptions& options, const ModelConfig& config)
      : options_(options), config_(config), machine_(read_machine_costs(*options.machine, config)) {
    if (const std::optional<DType> dtype = parse_dtype(options.dtype); dtype && *dtype != machine_.compute)
      throw Error(ExitCode::kData,
                  fmt::format("{}: measured in {}, --dtype is {}: expected --dtype {} or another file",
                              *options.machine, name(machine_.compute), name(*dtype), name(machine_.compute)));
    const int64_t positions = options.length + (generates() ? options.max_tokens - 1 : 0);
    if (positions > config.max_positions)
      throw Error(ExitCode::kData, fmt::format("a sample has {} positions, expected at most "
                                               "max_position_embeddings = {}",
                                               positions, config.max_positions));
  }

  bool generates() const { return options_.max_tokens > 0; }
  const MachineCosts& machine() const { return machine_; }

  Plans plan(int64_t ranks, bool with_given) const {
    if (options_.replicas > ranks || ranks % options_.replicas != 0 || ranks / options_.replicas > config_.layers)
      with_given = check_given(ranks, with_given);
    Plans plans;
    const JobRanks given{.stages = ranks / options_.replicas, .replicas = options_.replicas};
    if (generates()) {
      if (with_given) plans.given = row_of(forecast_generation(machine_, config_, generation(given)));
      for (const GenerationForecast& one : forecast_layouts(machine_, config_, generation({}), ranks))
        plans.layouts.push_back(row_of(one));
    } else {
      if (with_given)
        plans.given = row_of(forecast_scoring(machine_, config_, scoring(given), options_.samples), options_.samples);
      for (const ScoringForecast& one : forecast_layouts(machine_, config_, scoring({}), options_.samples, ranks))
        plans.layouts.push_back(row_of(one, options_.samples));
    }
    return plans;
  }

 private:
  // The options' own layout is impossible: an error if they ask for it, else there is only the best one.
  bool check_given(int64_t ranks, bool with_given) const {
    if (!with_given) return false;
    if (options_.replicas > ranks || ranks % options_.replicas != 0)
      throw Error(ExitCode::kUsage,
                  fmt::format("--replicas {}: {} ranks cannot be divided among them", options_.replicas, ranks));
    const bool asked = options_.replicas > 1 || !options_.layers.empty() || options_.virtual_stages != 1;
    if (asked)
      throw Error(ExitCode::kUsage, fmt::format("{} stages for the {} layers of the model: expected fewer ranks or "
                                                "more --replicas",
                                                ranks / options_.replicas, config_.layers));
    return false;
  }

  ScoringDemand scoring(JobRanks ranks) const {
    ScoringDemand demand = demand_on(machine_, config_, ranks);
    demand.length = options_.length;
    demand.micro_batch = options_.micro_batch;
    demand.virtual_stages = options_.virtual_stages;
    demand.layer_counts.assign(options_.layers.begin(), options_.layers.end());
    demand.balance = options_.balance;
    demand.results.score = options_.score;
    if (options_.score || options_.logits == "all")
      demand.results.positions = Positions::kAll;
    else
      demand.results.positions = options_.logits == "none" ? Positions::kNone : Positions::kLast;
    return demand;
  }
  GenerationDemand generation(JobRanks ranks) const {
    return {.step = {.stages = ranks.stages,
                     .cuda = machine_.cuda,
                     .micro_batch = options_.micro_batch,
                     .max_sequences = options_.max_sequences,
                     .prompt_tokens = options_.prompt_tokens},
            .replicas = ranks.replicas,
            .sequences = options_.samples,
            .length = options_.length,
            .new_tokens = options_.max_tokens,
            .page_size = options_.page_size,
            .layer_counts = {options_.layers.begin(), options_.layers.end()},
            .balance = options_.balance};
  }

  const PlanOptions& options_;
  const ModelConfig& config_;
  const MachineCosts machine_;
};

std::string layers_of(const PlanRow& row) {
  std::string text;
  for (int64_t stage = 0; stage < row.shape.stages; ++stage)
    text += (stage > 0 ? " | " : "") + layers_text(pieces_of(row.cut, row.shape.stages, stage));
  return text;
}

OrderedJson json_of(const PlanRow& row, bool generates) {
  OrderedJson json = {{"ranks", row.ranks},
                      {"replicas", row.replicas},
                      {"stages", row.shape.stages},
                      {"virtual_stages", row.shape.pieces},
                      {"layers", layers_of(row)},
                      {"seconds", row.seconds},
                      {generates ? "new_tokens_per_second" : "samples_per_second", row.per_second},
                      {"idle_share", row.idle},
                      {"busy_seconds", row.busy},
                      {"memory_bytes", row.memory_bytes},
                      {"fits", row.fits},
                      {"options", row.options}};
  json[generates ? "steps" : "micro_batches"] = row.units;
  json[generates ? "largest_step" : "largest_micro_batch"] = row.largest_unit;
  if (generates) json["first_token_seconds"] = row.first_token_seconds;
  return json;
}

void print_header(bool generates) {
  fmt::print("{:>9} {:>6} {:>9} {:>7} {:>3} {:>12} {:>12} {:>11} {:>12} {:>6} {:>10}  options\n", "", "ranks",
             "replicas", "stages", "V", generates ? "steps" : "micro-batch", generates ? "largest" : "batches",
             "seconds", generates ? "new tokens/s" : "samples/s", "idle", "memory");
}

void print_row(const std::string& title, const PlanRow& row, bool generates) {
  fmt::print("{:>9} {:>6} {:>9} {:>7} {:>3} {:>12} {:>12} {:>11.4g} {:>12.5g} {:>5.1f}% {:>10}  {}{}\n", title,
             row.ranks, row.replicas, row.shape.stages, row.shape.pieces, generates ? row.units : row.largest_unit,
             generates ? row.largest_unit : row.units, row.seconds, row.per_second, 100 * row.idle,
             bytes_text(row.memory_bytes), row.options, row.fits ? "" : " (does NOT fit)");
}

void print_picture(const PlanRow& row) {
  fmt::print("\nlayers {}\n", layers_of(row));
  fmt::print("timeline of a replica{}\n{}", row.units > std::ssize(row.timeline) ? ", its beginning" : "",
             timeline_text(row.timeline, row.shape, kTimelineWidth));
}

}  // namespace

void run_machine_plan(const PlanOptions& options, const ModelConfig& config) {
  const MachinePlanner planner(options, config);
  const bool generates = planner.generates(), alone = options.ranks.size() == 1;
  if (!alone && (options.replicas > 1 || !options.layers.empty() || options.virtual_stages != 1 || options.balance))
    throw Error(ExitCode::kUsage,
                "--ranks with several numbers prints the best layout of each: expected one number with --replicas, "
                "--layers, --virtual-stages or --balance");
  if (options.virtual_stages == 0 && !options.layers.empty())
    throw Error(ExitCode::kUsage,
                "--virtual-stages 0 cuts the layers itself: expected no --layers, or a number of pieces");
  OrderedJson json = OrderedJson::array();
  if (!options.json) {
    fmt::print("{}: {}, {} by {}\n", *options.machine, planner.machine().device, planner.machine().transport,
               planner.machine().program);
    if (generates)
      fmt::print("{} prompts of {} tokens, {} new tokens each, in {}\n\n", options.samples, options.length,
                 options.max_tokens, name(planner.machine().compute));
    else
      fmt::print("{} samples of {} tokens in {}\n\n", options.samples, options.length, name(planner.machine().compute));
    print_header(generates);
  }
  std::vector<std::string> assumed;
  for (const int64_t ranks : options.ranks) {
    const Plans plans = planner.plan(ranks, alone);
    for (std::string& one : assumptions(planner.machine(), {.stages = plans.layouts.front().shape.stages,
                                                           .replicas = plans.layouts.front().replicas}))
      if (std::find(assumed.begin(), assumed.end(), one) == assumed.end()) assumed.push_back(std::move(one));
    if (options.json) {
      OrderedJson one = {{"ranks", ranks}, {"layouts", OrderedJson::array()}};
      if (plans.given) one["given"] = json_of(*plans.given, generates);
      for (const PlanRow& row : plans.layouts) one["layouts"].push_back(json_of(row, generates));
      json.push_back(std::move(one));
      continue;
    }
    if (plans.given) print_row("as given", *plans.given, generates);
    for (const PlanRow& row : plans.layouts) {
      print_row(&row == &plans.layouts.front() ? "best" : "", row, generates);
      if (!alone) break;
    }
    if (alone) print_picture(plans.layouts.front());
  }
  if (options.json)
    fmt::print("{}\n", json_text(json, 2));
  else
    for (const std::string& one : assumed) fmt::print("assumed: {}\n", one);
}

}  // namespace lfm2
