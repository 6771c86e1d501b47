// A job that scores samples: micro-batches go through the pipeline, and logits or log-probabilities into a file. They
// may be compared with known answers. With --score, those of the samples' own tokens, from which perplexity follows.
#pragma once

#include "stage/io/scores.h"
#include "stage/io/validation.h"
#include "stage/job/job.h"
#include "stage/scoring/cost_model.h"
#include "stage/scoring/scorer.h"
#include "stage/scoring/windows.h"

namespace lfm2 {

class ScoringJob : public Job {
 public:
  ScoringJob(const Options& options, MpiWorld& world, JobText text) : Job(options, world, std::move(text)) {}
  void leave_output() override;

 private:
  bool lists_offsets(int rank) const override;
  void add_to_identity(Json& identity) const override;
  JobOutput& resume_output_file(Unfinished& begun) override;
  void plan() override;
  Portion portion() const override;
  void open() override;
  bool run_once() override;
  void end_runs() override;
  JobOutput* output() const override { return output_.get(); }
  std::optional<Verdict> verdict_of_kept() override;
  std::optional<ScoreSums> scores_of_kept() override;
  NotFinite not_finite() const override;
  Trace trace() const override { return {"micro-batch", scorer_->trace()}; }
  void add_to(StageReport& report) const override;
  void add_to(JobReport& report) const override;

  StageTime transfer_cost() const;          // estimated
  BlockCosts block_costs();                 // measured; collective
  void choose_plan(int64_t target_tokens);  // collective in the pipeline
  TimedSamples timed_samples() const;
  double tail_share(LayerRange layers) const;
  // Chooses the size of micro-batch again, by timing the loaded stages; collective in the pipeline.
  void measure_and_replan();
  std::optional<LateChoice> late_parts(const PipelineCosts& costs, const PipelineJob& job) const;
  int64_t mean_length() const;  // of what goes through the stages
  double result_bytes() const;
  int64_t largest_target() const;
  MicroBatches::Size micro_batch_size(int64_t tokens) const;
  PipelineJob pipeline_job(int64_t tokens, int64_t max_target) const;
  void open_answers();
  void open_output();
  std::vector<int64_t> first_rows_of_replicas() const;
  void replay_kept(ResultConsumer& consumer) const;

  std::optional<Windows> windows_;             // on first stages, with --stride where a sample is longer than the model
  std::optional<MicroBatches> micro_batches_;  // on first stages
  BatchPlan plan_;
  std::optional<Scorer> scorer_;
  std::unique_ptr<OutputFile> output_;
  std::optional<Validation> validation_;
  std::optional<ResultHash> hash_;           // the results of the last run
  std::optional<NotFiniteRows> not_finite_;  // among the results of the last run
  std::optional<ScoreCounter> scores_;       // with --score: those of the last run, and of samples that were kept
};

}  // namespace lfm2
