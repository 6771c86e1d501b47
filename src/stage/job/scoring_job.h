// A job that scores samples: micro-batches go through the pipeline, and logits or log-probabilities go to a file. They
// may be compared with a reference. With --score, results are the log-probabilities of the samples' own tokens, from
// which perplexity is computed.
#pragma once

#include "stage/io/scores.h"
#include "stage/io/validation.h"
#include "stage/job/job.h"
#include "stage/job/output_relay.h"
#include "stage/scoring/planning/scoring_demand.h"
#include "stage/scoring/scorer.h"
#include "stage/scoring/windows.h"

namespace lfm2 {

class ScoringJob : public Workload {
 public:
  explicit ScoringJob(JobFrame& job) : job_(job) {}
  void add_to_identity(Json& identity) const override;
  void resume(Unfinished& begun) override;
  void add_kept(JobReport& report) override;
  JobPlan plan() override;
  void open(const JobPlan& plan) override;
  RunEnd run() override;
  Figures figures() const override;
  NotFinite not_finite() const override;

 private:
  ScoringDemand demand() const;
  BlockCosts block_costs();                 // measured; collective
  void choose_plan(int64_t target_tokens);  // rank 0 chooses for all; collective
  TimedSamples timed_samples() const;
  double tail_share(LayerRange layers) const;
  // Chooses the size of micro-batch again, by timing the loaded stages; collective.
  void measure_and_replan(const std::vector<LayerRange>& cut);
  int64_t mean_length() const;  // of the samples or windows that go through the stages
  int64_t largest_target(const std::vector<LayerRange>& cut) const;
  JobPlan sizes_of(const std::vector<LayerRange>& cut) const;
  int64_t share_of_replica(int64_t tokens) const;
  void open_reference();
  void open_output();
  bool ends_samples(const MicroBatch& one) const;
  std::unique_ptr<BatchSource> make_source(const std::function<void(int64_t)>& on_passed_on);
  void replay_kept(ResultConsumer& consumer) const;

  JobFrame& job_;
  std::optional<Windows> windows_;             // on rank 0, with --stride if a sample is longer than the model
  std::optional<MicroBatches> micro_batches_;  // on rank 0
  BatchPlan plan_;
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
