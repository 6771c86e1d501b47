// The figures of a run: gathered from every rank, printed as the end table by rank 0, written as JSON by --report.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "stage/generation/generator.h"
#include "stage/io/validation.h"
#include "stage/model/partition.h"
#include "stage/scoring/scorer.h"

namespace lfm2 {

// What the first stage of a generation saw.
struct GenerationReport {
  int64_t tokens = 0;                                  // generated
  double first_token_median = 0, first_token_p95 = 0;  // seconds from a sample's entry into the pipeline on
  double next_token_median = 0, next_token_p95 = 0;    // seconds between two tokens of a sample
  int64_t preemptions = 0;                             // sequences that gave their pages back and were fed again
};
GenerationReport summarize(const GenerationTimes& times, const GenerationCounts& counts);

// One rank's part.
struct StageReport {
  int64_t rank = 0, stage = 0;
  LayerRange layers;
  std::string host, device;
  double load_seconds = 0;
  uint64_t weight_bytes = 0, activation_bytes = 0, cache_bytes = 0, peak_host_bytes = 0;
  StageTimes times;                            // of the last run
  std::string results_xxh3;                    // last stages that gave results
  std::optional<Verdict> verdict;              // last stages with answers
  std::optional<GenerationReport> generation;  // first stages
};

struct JobReport {
  std::string model_type, dtype, transport, version;
  int64_t layers = 0, samples = 0, tokens = 0, replicas = 1;
  int64_t kept_samples = 0;                            // --resume: finished before, not part of `samples`
  int64_t micro_batches = 0, largest_micro_batch = 0;  // of the first replica; in samples
  ResultKind results;
  std::optional<GenerationReport> generation;
  std::vector<double> seconds;  // of each run that counts
  std::vector<StageReport> stages;
  std::string results_xxh3;  // of what was handed out; empty where nothing was
  std::optional<Verdict> verdict;

  double median_seconds() const;
  double load_seconds() const;      // of the slowest stage
  double lost_share() const;        // 1 - mean busy / total, of the last run
  double ideal_lost_share() const;  // (S - 1) / (M + S - 1)
};

// Of all last stages together.
std::string merged_results_xxh3(const std::vector<StageReport>& stages);
std::optional<Verdict> merged_verdict(const std::vector<StageReport>& stages);
std::optional<GenerationReport> merged_generation(const std::vector<StageReport>& stages);

std::string to_json(const StageReport& report);
StageReport stage_report_from_json(const std::string& text);
std::string to_json(const JobReport& report);
std::string end_table(const JobReport& report);

uint64_t peak_host_bytes();  // of this process so far

}  // namespace lfm2
