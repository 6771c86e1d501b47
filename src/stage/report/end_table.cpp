// The lines of the end table, which docs/formats.md describes.
#include "stage/report/end_table.h"

#include <algorithm>

#include "base/bytes_text.h"

namespace lfm2 {

namespace {

const char* plural(int64_t count) { return count == 1 ? "" : "s"; }

// "1 prompt", "2 prompts".
std::string counted(int64_t count, const char* noun) { return fmt::format("{} {}{}", count, noun, plural(count)); }

std::string results_text(const ResultKind& kind) {
  if (kind.positions == Positions::kNone) return "no logits";
  if (kind.score) return "scored";
  if (kind.hidden != Hidden::kNone)
    return fmt::format("{} {} {}",
                       kind.hidden == Hidden::kMean ? "mean" : fmt::format("{}-position", positions_name(kind)),
                       kind.embeddings ? "embeddings" : "hidden states", states_name(kind));
  const std::string what = kind.top_k > 0 ? fmt::format("top-{} log-probabilities", kind.top_k) : "logits";
  return fmt::format("{}-position {}", positions_name(kind), what);
}

std::string verdict_line(const Verdict& verdict) {
  return fmt::format("{:<10} top-1 {}/{}, largest difference {:.3g} (tolerance {:g}){}\n",
                     verdict.valid() ? "VALID" : "INVALID", verdict.top1_equal, verdict.rows,
                     verdict.largest_difference, verdict.tolerance,
                     verdict.of_scores ? "" : fmt::format(", mean KL divergence {:.3g}", verdict.mean_kl()));
}

// The lines of the end table about what a generation did and how fast.
std::string generation_lines(const JobReport& report) {
  const GenerationReport& generation = *report.generation;
  const double seconds = report.median_seconds();
  const auto generated = static_cast<double>(generation.tokens), tokens = static_cast<double>(report.tokens);
  std::string text = fmt::format("{:<10} {}, {} in all, {} generated in {:.3f} s: {} of up to {}\n", "job",
                                 counted(report.samples, "prompt"), counted(report.tokens, "token"),
                                 counted(generation.tokens, "token"), seconds, counted(report.micro_batches(), "step"),
                                 counted(report.largest_micro_batch, "sequence"));
  text +=
      fmt::format("{:<10} {:.0f} generated tokens/s, {:.0f} tokens/s with the prompts', {:.1f} samples/s\n", "speed",
                  generated / seconds, (generated + tokens) / seconds, static_cast<double>(report.samples) / seconds);
  text += fmt::format("{:<10} first token {:.1f} ms after its prompt entered (median; p95 {:.1f})", "latency",
                      generation.first_token_median * 1e3, generation.first_token_p95 * 1e3);
  if (generation.tokens > report.samples)
    text += fmt::format(", each further one {:.2f} ms (p95 {:.2f})", generation.next_token_median * 1e3,
                        generation.next_token_p95 * 1e3);
  text += "\n";
  if (const int64_t preemptions = generation.scheduled.preemptions; preemptions > 0)
    text += fmt::format("{:<10} {} a sequence returned its pages of the KV cache and was computed again\n", "preempted",
                        counted(preemptions, "time"));
  if (const SchedulerCounts& counts = generation.scheduled; counts.draft_rounds > 0)
    text += fmt::format("{:<10} {} of {} were right, in {}\n", "drafts", counts.accepted_tokens(),
                        counted(counts.draft_tokens, "drafted token"), counted(counts.draft_rounds, "step"));
  return text;
}

// The same for scoring.
std::string scoring_lines(const JobReport& report) {
  const double seconds = report.median_seconds();
  return fmt::format("{:<10} {}, {}, {} in {:.3f} s: {} micro-batch{} of up to {}\n", "job",
                     counted(report.samples, "sample"), counted(report.tokens, "token"), results_text(report.results),
                     seconds, report.micro_batches(), report.micro_batches() == 1 ? "" : "es",
                     counted(report.largest_micro_batch, "sample")) +
         fmt::format("{:<10} {:.1f} samples/s, {:.0f} tokens/s\n", "speed",
                     static_cast<double>(report.samples) / seconds, static_cast<double>(report.tokens) / seconds);
}

// Empty where nothing was sent.
std::string transfers_line(const std::vector<StageReport>& stages) {
  double sending = 0, hidden = 0;
  for (const StageReport& stage : stages) {
    sending += stage.times.sending;
    hidden += stage.times.hidden;
  }
  if (sending == 0) return "";
  return fmt::format("{:<10} {:.1f} % of sending overlapped with the sender's computation\n", "transfers",
                     100 * hidden / sending);
}

std::string idle_line(const JobReport& report) {
  const std::optional<double> scheduled = report.scheduled_lost_share();
  return fmt::format(
      "{:<10} {:.1f} % of the stages' time; {}fill and drain alone cost {:.1f} %\n", "idle", report.lost_share() * 100,
      scheduled ? fmt::format("the schedule costs {:.1f} %, ", *scheduled * 100) : "", report.ideal_lost_share() * 100);
}

// A line for each rank, below a line that names the columns.
std::string rank_lines(const std::vector<StageReport>& stages) {
  size_t width = 7;  // of the layers
  for (const StageReport& stage : stages) width = std::max(width, layers_text(stage.pieces).size());
  std::string text =
      fmt::format("{:>4}  {:>5}  {:>{}}  {:>8}  {:>8}  {:>9}  {:>11}  {:>9}  {:>10}  {:>11}  {:>9}  {:>10}  host\n",
                  "rank", "stage", "layers", width, "load s", "busy s", "sending s", "receiving s", "waiting s",
                  "weights", "activations", "cache", "peak host");
  for (const StageReport& stage : stages) {
    const StageTimes& times = stage.times;
    text += fmt::format(
        "{:>4}  {:>5}  {:>{}}  {:>8.3f}  {:>8.3f}  {:>9.3f}  {:>11.3f}  {:>9.3f}  {:>10}  {:>11}  {:>9}  {:>10}  {}\n",
        stage.rank, stage.stage, layers_text(stage.pieces), width, stage.load_seconds, times.busy, times.sending,
        times.receiving, std::max(0.0, times.total - times.busy - times.receiving), bytes_text(stage.weight_bytes),
        bytes_text(stage.activation_bytes), stage.cache_bytes > 0 ? bytes_text(stage.cache_bytes) : "-",
        bytes_text(stage.peak_host_bytes), stage.host);
  }
  return text;
}

std::string score_lines(const JobReport& report) {
  if (!report.scores) return "";
  const ScoreSums& sums = *report.scores;
  std::string text = fmt::format("{:<10} {} tokens, {:.2f} % of them top-1", "scores", sums.tokens,
                                 100 * static_cast<double>(sums.greedy) / static_cast<double>(sums.tokens));
  if (sums.not_finite > 0) text += fmt::format("; {} log-probabilities are no numbers", sums.not_finite);
  const char* separator = "";
  text += fmt::format("\n{:<10} ", "perplexity");
  for (const auto& [unit, count] : score_units(report)) {
    const Perplexity found = perplexity(sums, count);
    text += fmt::format("{}{:.6g} ± {:.2g} by {} ({})", separator, found.value, found.standard_error, unit, count);
    separator = ", ";
  }
  return text + "\n";
}

std::string not_finite_line(const NotFinite& found) {
  return found.count == 0 ? "" : fmt::format("{:<10} {}\n", "not finite", not_finite_text(found));
}

}  // namespace

std::string found_text(const JobReport& report) {
  const char* verdict = !report.verdict ? "" : report.verdict->valid() ? ", VALID" : ", INVALID";
  return fmt::format("{} (XXH3-128){}\n{}{}", report.results_xxh3, verdict, score_lines(report),
                     not_finite_line(report.not_finite));
}

std::string end_table(const JobReport& report) {
  const auto stages = static_cast<int64_t>(report.stages.size()) / report.replicas;
  std::string text = fmt::format(
      "{:<10} {}, {} layers in {} stage{}{}{}, {}{} on {}, {}\n", "model", report.model_type, report.layers, stages,
      plural(stages), report.virtual_stages > 1 ? fmt::format(" of {} pieces", report.virtual_stages) : "",
      report.replicas > 1 ? fmt::format(", {} times", report.replicas) : "", dtype_text(report.dtype, report.fp8),
      report.cache_dtype == "fp8" ? ", keys and values in fp8," : "", report.stages.front().device, report.transport);
  if (!report.adapters.empty()) text += fmt::format("{:<10} {}\n", "adapters", adapter_names(report.adapters));
  text += report.generation ? generation_lines(report) : scoring_lines(report);
  text += score_lines(report);
  text += not_finite_line(report.not_finite);
  if (report.error_answers > 0)
    text +=
        fmt::format("{:<10} {} refused and answered with an error\n", "errors", counted(report.error_answers, "line"));
  if (report.kept_samples > 0)
    text += fmt::format("{:<10} {} already finished\n", "resumed", counted(report.kept_samples, "sample"));
  if (report.seconds.size() > 1) {
    const auto [fastest, slowest] = std::minmax_element(report.seconds.begin(), report.seconds.end());
    const auto samples = static_cast<double>(report.samples);
    text += fmt::format("{:<10} median of {} runs; from {:.1f} to {:.1f} samples/s\n", "benchmark",
                        report.seconds.size(), samples / *slowest, samples / *fastest);
  }
  text += fmt::format("{:<10} {:.3f} s\n", "load", report.load_seconds());
  text += idle_line(report);
  text += transfers_line(report.stages);
  text += rank_lines(report.stages);
  if (!report.results_xxh3.empty()) text += fmt::format("{:<10} {} (XXH3-128)\n", "results", report.results_xxh3);
  if (report.verdict) text += verdict_line(*report.verdict);
  return text;
}

}  // namespace lfm2
