// A job that generates: prompts go through the pipeline step by step, and completions go to a file or to the traffic's
// consumers.
#pragma once

#include "stage/dspark/dspark_weights.h"
#include "stage/generation/generator.h"
#include "stage/io/completions.h"
#include "stage/io/sample_requests.h"
#include "stage/job/job.h"
#include "stage/job/traffic.h"
#include "stage/pipeline/output_relay.h"
#include "stage/pipeline/replica_link.h"

namespace lfm2 {

class GenerationJob : public Workload {
 public:
  GenerationJob(JobFrame& job, std::unique_ptr<Traffic> traffic) : job_(job), traffic_(std::move(traffic)) {}
  void add_to_identity(Json& identity) const override;
  void resume(Unfinished& begun) override;
  JobPlan plan() override;
  void before_loading() override {
    if (job_.world.rank() == 0) traffic_->before_loading();
  }
  void open(const JobPlan& plan) override;
  RunEnd run() override;
  void end_runs() override { traffic_->close(); }
  Figures figures() const override;
  NotFinite not_finite() const override { return job_.is_last() ? hash_.not_finite() : NotFinite{}; }

 private:
  std::vector<double> block_seconds();  // measured seconds of a step in each block; collective
  void plan_drafts(const GenerationOptions& wanted);
  void read_drafter(const GenerationOptions& wanted);
  void load_drafter();                              // last stage
  uint64_t drafter_bytes(LayerRange layers) const;  // without its weights and the pages of its cache
  JobPlan sizes_of(std::vector<LayerRange> cut) const;
  CacheShape fit_caches(LayerRange layers) const;  // collective; the weights must be loaded
  Capacity capacity() const;
  void answer_errors(const std::vector<CompletionConsumer*>& consumers) const;
  TokenText token_text() const;

  // --draft DIR: what every stage knows of the drafter, and what the last one loads.
  struct Drafter {
    DsparkFiles files;
    std::optional<DsparkWeights> weights = {};
    std::optional<Dspark> model = {};
  };

  JobFrame& job_;
  const std::unique_ptr<Traffic> traffic_;
  GenerationPlan plan_;
  PromptSizes prompts_;
  std::optional<Drafter> drafter_;
  std::optional<Generator> generator_;
  std::optional<ReplicaLinks> links_;  // with several replicas
  CompletionFile* output_ = nullptr;   // the frame owns it
  std::optional<OutputRelay> relay_;   // last stages, if several replicas have completions for the output
  CompletionHash hash_;                // the completions of this rank's pipeline in the last run
};

}  // namespace lfm2
