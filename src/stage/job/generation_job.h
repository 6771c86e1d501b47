// Continues samples: requests through the pipeline step by step, completions into a file.
#pragma once

#include "stage/generation/generator.h"
#include "stage/io/completions.h"
#include "stage/job/job.h"

namespace lfm2 {

class GenerationJob : public Job {
 public:
  GenerationJob(const Options& options, MpiWorld& world) : Job(options, world) {}
  void leave_output() override { output_.reset(); }

 private:
  // The prompts of a pipeline.
  struct PromptSizes {
    int64_t tokens = 0;      // of all prompts
    int64_t new_tokens = 0;  // that may follow them, at most
    int64_t longest = 0;     // cached positions of the longest sequence
    int64_t page = 0;        // positions of a page: no more than the longest sequence has
    int64_t pages = 0;       // of the longest sequences that fit into the slots
  };

  void check_samples(const Samples& prompts) const override;
  bool lists_offsets(int) const override { return false; }
  void add_to_identity(Json& identity) const override;
  JobOutput& resume_output_file(Unfinished& begun) override;
  void plan() override;
  std::vector<double> layer_seconds() const override;
  Portion portion() const override;
  void open() override;
  bool run_once() override;
  JobOutput* output() const override { return output_.get(); }
  Trace trace() const override { return {"step", generator_->trace()}; }
  void add_to(StageReport& report) const override;
  void add_to(JobReport& report) const override;

  PromptSizes measure_prompts(int64_t slots) const;
  Request each_request() const;
  CacheShape fit_caches() const;  // once the weights are there

  GenerationPlan plan_;
  PromptSizes prompts_;
  std::optional<Generator> generator_;
  std::unique_ptr<CompletionFile> output_;
  CompletionHash hash_;  // of the last run
};

}  // namespace lfm2
