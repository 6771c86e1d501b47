// The figures of a job. They are gathered from every rank; rank 0 prints them as the end table and writes them as JSON
// (--report).
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/not_finite.h"
#include "base/words.h"
#include "stage/generation/generator.h"
#include "stage/io/scores.h"
#include "stage/io/validation.h"
#include "stage/model/partition.h"
#include "stage/scoring/scorer.h"
#include "stage/shards/fp8_weights.h"

namespace lfm2 {

// The figures that the first stage of a generation adds.
struct GenerationReport {
  int64_t tokens = 0;  // tokens that were generated
  // Seconds from a sample's entry into the pipeline to its first token.
  double first_token_median = 0, first_token_p95 = 0;
  double next_token_median = 0, next_token_p95 = 0;  // seconds from one token of a sample to the next
  SchedulerCounts scheduled = {};
};
void for_each_field(MaybeConst<GenerationReport> auto& report, const auto& each) {  // see base/words.h
  each(report.tokens, report.first_token_median, report.first_token_p95, report.next_token_median,
       report.next_token_p95, report.scheduled.requests, report.scheduled.prompt_tokens, report.scheduled.preemptions,
       report.scheduled.draft_rounds, report.scheduled.draft_tokens, report.scheduled.accepted);
}
GenerationReport summarize(const GenerationTimes& times, const GenerationCounts& counts);

// The figures of one rank.
struct StageReport {
  int64_t rank = 0, stage = 0;
  int64_t micro_batches = 0;                     // micro-batches or steps, of the last run
  std::vector<LayerRange> pieces{LayerRange{}};  // the rank's layers; several with interleaved stages
  std::string host, device;
  double load_seconds = 0;
  uint64_t weight_bytes = 0, activation_bytes = 0, cache_bytes = 0, peak_host_bytes = 0;
  StageTimes times;                            // times of the last run
  std::string results_xxh3;                    // on last stages that emitted results
  std::optional<Verdict> verdict;              // on last stages with --reference
  std::optional<GenerationReport> generation;  // on first stages
  std::optional<ScoreSums> scores = {};        // on last stages with --score
  NotFinite not_finite = {};                   // on last stages
};
void for_each_field(MaybeConst<StageReport> auto& report, const auto& each) {  // see base/words.h
  each(report.rank, report.stage, report.micro_batches, report.pieces, report.host, report.device, report.load_seconds,
       report.weight_bytes, report.activation_bytes, report.cache_bytes, report.peak_host_bytes, report.times,
       report.results_xxh3, report.verdict, report.generation, report.scores, report.not_finite);
}

struct JobReport {
  std::string model_type, dtype, cache_dtype, transport, version;
  Fp8Kind fp8 = {};                        // of the shards, independent of `dtype`
  std::vector<AdapterId> adapters = {};    // that were merged into the weights
  int64_t layers = 0, virtual_stages = 1;  // pieces of layers on each rank
  int64_t samples = 0, tokens = 0, replicas = 1;
  int64_t error_answers = 0;        // refused batch lines, which are answered with an error
  int64_t kept_samples = 0;         // --resume: samples that an earlier run finished; not counted in `samples`
  int64_t largest_micro_batch = 0;  // samples in the largest micro-batch or step of the first replica
  std::vector<int> devices = {};    // [stages] of the first replica, for replay(); empty if no ranks share a device
  ResultKind results;
  std::optional<GenerationReport> generation;
  std::optional<ScoreSums> scores = {};          // --score: of all samples, including an earlier run's
  int64_t scored_words = -1, scored_bytes = -1;  // of the scored text; -1: unknown, no tokenizer
  NotFinite not_finite = {};                     // of this run
  std::vector<double> seconds;                   // duration of each measured run
  std::vector<StageReport> stages;
  std::string results_xxh3;  // hash of all results; empty without results
  std::optional<Verdict> verdict;

  int64_t micro_batches() const;  // micro-batches or steps of all replicas
  double median_seconds() const;
  double load_seconds() const;  // load time of the slowest stage
  double lost_share() const;    // 1 - mean busy / total of the longest stage, of the last run
  // What lost_share() would be if transfers took no time and nothing else delayed a stage. It replays the schedule with
  // the time of each micro-batch in each piece or, if there are very many, with their average. Nothing for generation,
  // whose steps are not known in advance.
  std::optional<double> scheduled_lost_share() const;
  // (S - 1) / (V M + S - 1): the share lost to fill and drain with S stages of V pieces and M micro-batches.
  double ideal_lost_share() const;
};

// Combine the figures of several stages.
std::string merged_results_xxh3(const std::vector<StageReport>& stages);
std::optional<Verdict> merged_verdict(const std::vector<StageReport>& stages);
std::optional<GenerationReport> merged_generation(const std::vector<StageReport>& stages);
std::optional<ScoreSums> merged_scores(const std::vector<StageReport>& stages);
NotFinite merged_not_finite(const std::vector<StageReport>& stages);

// The units for which a perplexity can be computed, and the number of scored units.
std::vector<std::pair<const char*, int64_t>> score_units(const JobReport& report);

std::string to_json(const JobReport& report);

uint64_t peak_host_bytes();  // the peak memory of this process so far

}  // namespace lfm2
