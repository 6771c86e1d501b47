// Merges the figures of the ranks, and writes them as JSON.
#include "stage/report/report.h"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "base/json/json.h"
#include "stage/scoring/planning/replay.h"

namespace lfm2 {

namespace {

OrderedJson as_json(const Verdict& verdict) {
  OrderedJson json = {{"valid", verdict.valid()},
                      {"rows", verdict.rows},
                      {"top1_equal", verdict.top1_equal},
                      {"largest_difference", verdict.largest_difference},
                      {"tolerance", verdict.tolerance}};
  if (!verdict.of_scores) json["mean_kl_divergence"] = verdict.mean_kl();
  return json;
}

OrderedJson scores_of_job(const JobReport& report) {
  const ScoreSums& sums = *report.scores;
  OrderedJson json = {{"tokens", sums.tokens}, {"likeliest_tokens", sums.greedy}, {"sum_logprob", nullptr}};
  if (sums.not_finite == 0) json["sum_logprob"] = sums.log_probs.value();
  if (report.scored_words >= 0) json["words"] = report.scored_words;
  if (report.scored_bytes >= 0) json["bytes"] = report.scored_bytes;
  for (const auto& [unit, count] : score_units(report)) {
    const Perplexity found = perplexity(sums, count);
    json["perplexity"][unit] = {{"value", found.value}, {"standard_error", found.standard_error}};
  }
  return json;
}

OrderedJson as_json(const GenerationReport& generation) {
  const SchedulerCounts& counts = generation.scheduled;
  OrderedJson json = {
      {"tokens", generation.tokens},
      {"first_token_seconds", {{"median", generation.first_token_median}, {"p95", generation.first_token_p95}}},
      {"next_token_seconds", {{"median", generation.next_token_median}, {"p95", generation.next_token_p95}}},
      {"preemptions", counts.preemptions}};
  if (counts.draft_rounds > 0)
    json.update({{"draft_rounds", counts.draft_rounds},
                 {"draft_tokens", counts.draft_tokens},
                 {"accepted_tokens", counts.accepted_tokens()},
                 {"accepted_tokens_by_place", counts.accepted}});
  return json;
}

void add_layers(const LayerRange& layers, OrderedJson& json) {
  json["layer_first"] = layers.first;
  json["layer_count"] = layers.count;
  json["without_first_mixer"] = layers.without_first_mixer;
  json["without_last_feed_forward"] = layers.without_last_feed_forward;
}

OrderedJson as_json(const StageReport& report) {
  OrderedJson json = {{"rank", report.rank}, {"stage", report.stage}, {"micro_batches", report.micro_batches}};
  add_layers(report.pieces.front(), json);
  json.update({{"host", report.host},
               {"device", report.device},
               {"load_seconds", report.load_seconds},
               {"weight_bytes", report.weight_bytes},
               {"activation_bytes", report.activation_bytes},
               {"cache_bytes", report.cache_bytes},
               {"peak_host_bytes", report.peak_host_bytes},
               {"total_seconds", report.times.total},
               {"busy_seconds", report.times.busy},
               {"sending_seconds", report.times.sending},
               {"sending_under_compute_seconds", report.times.hidden},
               {"receiving_seconds", report.times.receiving}});
  if (report.pieces.size() > 1)
    for (size_t piece = 0; piece < report.pieces.size(); ++piece) {
      OrderedJson one;
      add_layers(report.pieces[piece], one);
      one["busy_seconds"] = report.times.busy_with[piece];
      json["pieces"].push_back(std::move(one));
    }
  if (!report.times.busy_each.empty()) json["micro_batch_seconds"] = report.times.busy_each;
  if (!report.results_xxh3.empty()) json["results_xxh3"] = report.results_xxh3;
  if (report.verdict) json["validation"] = as_json(*report.verdict);
  if (report.generation) json["generation"] = as_json(*report.generation);
  if (report.scores) json["scores"] = as_json(*report.scores);
  if (report.not_finite.count > 0) json["not_finite"] = as_json(report.not_finite);
  return json;
}

// The schedule of the first replica stands for those of all.
int64_t micro_batches_of_first(const std::vector<StageReport>& stages) {
  return stages.empty() ? 0 : stages.front().micro_batches;
}

}  // namespace

int64_t JobReport::micro_batches() const {
  int64_t sum = 0;
  for (const StageReport& report : stages) sum += report.stage == 0 ? report.micro_batches : 0;
  return sum;
}

double JobReport::median_seconds() const {
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  const size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

double JobReport::load_seconds() const {
  double slowest = 0;
  for (const StageReport& stage : stages) slowest = std::max(slowest, stage.load_seconds);
  return slowest;
}

double JobReport::lost_share() const {
  const auto ring = static_cast<size_t>(std::ssize(stages) / replicas);
  double busy = 0, total = 0;
  // A stage that has finished is idle until the last stage of its replica has finished.
  for (size_t first = 0; first < stages.size(); first += ring) {
    double longest = 0;
    for (const StageReport& stage : std::span(stages).subspan(first, ring)) {
      busy += stage.times.busy;
      longest = std::max(longest, stage.times.total);
    }
    total += longest * static_cast<double>(ring);
  }
  return total > 0 ? std::max(0.0, 1 - busy / total) : 0;
}

std::optional<double> JobReport::scheduled_lost_share() const {
  const int64_t micro_batches = micro_batches_of_first(stages);
  if (generation || micro_batches == 0) return {};
  const int64_t ring = std::ssize(stages) / replicas;
  PipelineCosts costs{.shape = {.stages = ring, .pieces = virtual_stages},
                      .virtual_stages = std::vector<StageTime>(static_cast<size_t>(ring * virtual_stages)),
                      .transfer = {},
                      .devices = devices};
  double busy = 0;
  std::vector<const StageTimes*> times(static_cast<size_t>(ring));
  for (const StageReport& report : stages) {
    if (report.rank >= ring) continue;  // of another replica
    times[static_cast<size_t>(report.stage)] = &report.times;
    for (int64_t piece = 0; piece < virtual_stages; ++piece) {
      const double of_piece = report.times.busy_with[static_cast<size_t>(piece)];
      costs.virtual_stages[static_cast<size_t>(piece * ring + report.stage)].fixed =
          of_piece / static_cast<double>(micro_batches);
      busy += of_piece;
    }
  }
  const auto timed = [&](const StageTimes* stage) {
    const auto whole = [&](const std::vector<double>& piece) { return std::ssize(piece) == micro_batches; };
    return std::ssize(stage->busy_each) == virtual_stages &&
           std::all_of(stage->busy_each.begin(), stage->busy_each.end(), whole);
  };
  const auto each = [&](int64_t virtual_stage, int64_t micro_batch) {
    const StageTimes& stage = *times[static_cast<size_t>(virtual_stage % ring)];
    return stage.busy_each[static_cast<size_t>(virtual_stage / ring)][static_cast<size_t>(micro_batch)];
  };
  const double last_end =
      std::all_of(times.begin(), times.end(), timed)
          ? replay(costs.shape, micro_batches, {.forward = each, .transfer = {}, .head = {}}, devices).seconds
          : pipeline_seconds(costs, micro_batches, 0, 0);
  const double total = last_end * static_cast<double>(ring);
  return total > 0 ? std::max(0.0, 1 - busy / total) : 0;
}

double JobReport::ideal_lost_share() const {
  const int64_t micro_batches = micro_batches_of_first(stages);
  if (micro_batches == 0) return 0;  // nothing to do: every line was refused, or finished before
  // Turns of one micro-batch on a stage. Before a micro-batch can come round a ring again, the first one passes all
  // ranks.
  const int64_t ring = std::ssize(stages) / replicas;
  const int64_t busy = virtual_stages * micro_batches;
  const int64_t turns = (virtual_stages - 1) * std::max(micro_batches, ring) + micro_batches + ring - 1;
  return static_cast<double>(turns - busy) / static_cast<double>(turns);
}

std::string merged_results_xxh3(const std::vector<StageReport>& stages) {
  HashSum sum;
  bool any = false;
  for (const StageReport& stage : stages) {
    if (stage.results_xxh3.empty()) continue;
    sum.add(HashSum::from_hex(stage.results_xxh3));
    any = true;
  }
  return any ? sum.hex() : "";
}

// The latencies are those of the slowest pipeline.
std::optional<GenerationReport> merged_generation(const std::vector<StageReport>& stages) {
  std::optional<GenerationReport> all;
  for (const StageReport& stage : stages) {
    if (!stage.generation) continue;
    if (!all) all.emplace();
    const GenerationReport& part = *stage.generation;
    all->tokens += part.tokens;
    all->scheduled.add(part.scheduled);
    all->first_token_median = std::max(all->first_token_median, part.first_token_median);
    all->first_token_p95 = std::max(all->first_token_p95, part.first_token_p95);
    all->next_token_median = std::max(all->next_token_median, part.next_token_median);
    all->next_token_p95 = std::max(all->next_token_p95, part.next_token_p95);
  }
  return all;
}

std::optional<ScoreSums> merged_scores(const std::vector<StageReport>& stages) {
  std::optional<ScoreSums> all;
  for (const StageReport& stage : stages) {
    if (!stage.scores) continue;
    if (!all) all.emplace();
    all->add(*stage.scores);
  }
  return all;
}

NotFinite merged_not_finite(const std::vector<StageReport>& stages) {
  NotFinite all;
  for (const StageReport& stage : stages) all.add(stage.not_finite);
  return all;
}

std::optional<Verdict> merged_verdict(const std::vector<StageReport>& stages) {
  std::optional<Verdict> all;
  for (const StageReport& stage : stages) {
    if (!stage.verdict) continue;
    if (!all) all = Verdict{.tolerance = stage.verdict->tolerance};
    const Verdict& part = *stage.verdict;
    all->of_scores = part.of_scores;
    all->rows += part.rows;
    all->top1_equal += part.top1_equal;
    // Keeps NaN, which means that only one side is NaN.
    if (std::isnan(part.largest_difference) || part.largest_difference > all->largest_difference)
      all->largest_difference = part.largest_difference;
    all->kl.add(part.kl);
  }
  return all;
}

GenerationReport summarize(const GenerationTimes& times, const GenerationCounts& counts) {
  return {.tokens = times.to_first_token.count() + times.between_tokens.count(),
          .first_token_median = times.to_first_token.quantile(0.5),
          .first_token_p95 = times.to_first_token.quantile(0.95),
          .next_token_median = times.between_tokens.quantile(0.5),
          .next_token_p95 = times.between_tokens.quantile(0.95),
          .scheduled = counts.scheduled};
}

std::string to_json(const JobReport& report) {
  const double seconds = report.median_seconds();
  OrderedJson json = {{"version", report.version},
                      {"model_type", report.model_type},
                      {"layers", report.layers},
                      {"virtual_stages", report.virtual_stages},
                      {"dtype", report.dtype},
                      {"cache_dtype", report.cache_dtype},
                      {"transport", report.transport},
                      {"samples", report.samples},
                      {"tokens", report.tokens},
                      {"kept_samples", report.kept_samples},
                      {"error_answers", report.error_answers},
                      {"not_finite", as_json(report.not_finite)},
                      {"replicas", report.replicas},
                      {"micro_batches", report.micro_batches()},
                      {"largest_micro_batch", report.largest_micro_batch},
                      {"positions", positions_name(report.results)},
                      {"top_logprobs", report.results.top_k},
                      {"seconds", report.seconds},
                      {"median_seconds", seconds},
                      {"samples_per_second", static_cast<double>(report.samples) / seconds},
                      {"tokens_per_second", static_cast<double>(report.tokens) / seconds},
                      {"load_seconds", report.load_seconds()},
                      {"lost_share", report.lost_share()},
                      {"ideal_lost_share", report.ideal_lost_share()},
                      {"results_xxh3", report.results_xxh3}};
  if (const std::optional<double> scheduled = report.scheduled_lost_share()) json["scheduled_lost_share"] = *scheduled;
  if (!report.fp8.scheme.empty()) json["fp8"] = {{"scheme", report.fp8.scheme}, {"modules", report.fp8.modules}};
  if (!report.adapters.empty()) json["adapters"] = adapters_json(report.adapters);
  if (report.generation) {
    json["generation"] = as_json(*report.generation);
    json["generated_tokens_per_second"] = static_cast<double>(report.generation->tokens) / seconds;
  }
  if (report.scores) json["scores"] = scores_of_job(report);
  if (report.results.hidden != Hidden::kNone) json["states"] = states_name(report.results);
  for (const StageReport& stage : report.stages) json["stages"].push_back(as_json(stage));
  if (report.verdict) json["validation"] = as_json(*report.verdict);
  return json_text(json, 2) + "\n";
}

std::vector<std::pair<const char*, int64_t>> score_units(const JobReport& report) {
  std::vector<std::pair<const char*, int64_t>> units{{"token", report.scores->tokens}};
  if (report.scored_words > 0) units.emplace_back("word", report.scored_words);
  if (report.scored_bytes > 0) units.emplace_back("byte", report.scored_bytes);
  return units;
}

uint64_t peak_host_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace lfm2
