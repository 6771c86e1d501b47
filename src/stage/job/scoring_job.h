// A job that scores samples: micro-batches go through the pipeline, and logits or log-probabilities go to a file. They
// may be compared with a reference. With --score, results are the log-probabilities of the samples' own tokens, from
// which perplexity is computed.
#pragma once

#include "stage/io/scores.h"
#include "stage/io/validation.h"
#include "stage/job/job.h"
#include "stage/job/scoring_planner.h"
#include "stage/pipeline/output_relay.h"
#include "stage/scoring/scorer.h"

namespace lfm2 {

class ScoringJob : public Workload {
 public:
  explicit ScoringJob(JobFrame& job) : job_(job) {}
  void add_to_identity(Json& identity) const override;
  void resume(Unfinished& begun) override;
  void add_kept(JobReport& report) override;
  JobPlan plan() override { return planner_.plan(); }
  void open(const JobPlan& plan) override;
  RunEnd run() override;
  Figures figures() const override;
  NotFinite not_finite() const override;

 private:
  void open_reference();
  void open_output();
  bool ends_samples(const MicroBatch& one) const;
  std::unique_ptr<BatchSource> make_source(const std::function<void(int64_t)>& on_passed_on);
  void replay_kept(ResultConsumer& consumer) const;

  JobFrame& job_;
  ScoringPlanner planner_{job_};
  std::optional<Scorer> scorer_;
  std::optional<ReplicaLinks> links_;  // with several replicas
  std::optional<OutputRelay> relay_;   // last stages, if several replicas have results for the output
  OutputFile* output_ = nullptr;       // the frame owns it
  std::optional<Validation> validation_;
  std::optional<ResultHash> hash_;           // the results of the last run
  std::optional<NotFiniteRows> not_finite_;  // among the results of the last run
  std::optional<ScoreCounter> scores_;       // with --score: of the last run and of kept samples
};

}  // namespace lfm2
