// One run of the program on one rank, from the checked options to the exit code. main owns it and ends all ranks where
// it throws.
#pragma once

#include <algorithm>
#include <memory>

#include "comm/control_link.h"
#include "comm/mpi_world.h"
#include "stage/generation/generator.h"
#include "stage/io/completions.h"
#include "stage/io/output_file.h"
#include "stage/io/validation.h"
#include "stage/job/backend_choice.h"
#include "stage/job/job_samples.h"
#include "stage/job/options.h"
#include "stage/job/report.h"
#include "stage/scoring/pipeline.h"
#include "stage/shards/shard_weights.h"

namespace lfm2 {

// Threads that hash and write results: each fills fresh memory at about 2.7 GB/s, the bus brings 55.
inline constexpr int kMostResultThreads = 12;

// The prompts of a pipeline.
struct PromptSizes {
  int64_t tokens = 0;      // of all prompts
  int64_t new_tokens = 0;  // that may follow them, at most
  int64_t longest = 0;     // cached positions of the longest sequence
  int64_t page = 0;        // positions of a page: no more than the longest sequence has
  int64_t pages = 0;       // of the longest sequences that fit into the slots
};

class Job {
 public:
  Job(const Options& options, MpiWorld& world) : options_(options), world_(world) {}

  ExitCode run();
  // After an error: what is finished stays, for --resume. The other members, which may still be in use, stay alive.
  void leave_output() {
    if (pipeline_) pipeline_->stop_results();
    output_.reset();
    completions_.reset();
  }

 private:
  Samples check_inputs();  // the job's samples, on rank 0; rank 0 alone first, so that a bad file is reported once
  void expect_one_program() const;
  void form_pipelines();
  bool lists_offsets(int rank) const;
  void share_job(Samples all);
  uint64_t job_bytes() const;
  void take_up();
  void open_unfinished_output();
  std::string identity(const std::vector<std::string>& machines) const;
  OutputJob output_job();
  void replay_kept();
  void choose_cut();
  void choose_plan(int64_t target_tokens);  // collective in the pipeline
  void measure_and_replan();                // the size of micro-batch, once the weights are there
  void check_memory() const;
  void load_weights();
  void open_results();  // last stages
  void open_output();
  std::vector<int64_t> first_rows_of_replicas() const;
  void exchange_seams();
  void run_pipeline();
  void check_prompts(const Samples& prompts) const;
  PromptSizes measure_prompts(int64_t slots) const;
  void limit_steps();
  CacheShape fit_caches() const;  // once the weights are there
  void open_generation();
  void run_generation();
  void run_repeatedly(const std::function<bool()>& run);
  ExitCode finish();
  ExitCode finish_without_run();
  ExitCode finish_stopped();

  bool generates() const { return options_.generation.most_new > 0; }
  bool is_first() const { return pipeline_ranks_->rank() == 0; }
  bool is_last() const { return pipeline_ranks_->rank() + 1 == pipeline_ranks_->size(); }
  int64_t replica() const { return world_.rank() / pipeline_ranks_->size(); }
  bool makes_output() const { return is_last() && replica() == 0; }
  LayerRange layers() const { return stages_[static_cast<size_t>(pipeline_ranks_->rank())]; }
  std::vector<const ShardTensor*> tensors() const { return stage_tensors(*shards_, layers(), is_first(), is_last()); }
  StageLinks link_stages(int64_t most_tokens);  // of one micro-batch or step; makes channel and control link
  void at(const Place& place) const;
  bool is_stopped_before_loading();  // collective
  double load_timeout() const;
  void say(const std::string& line) const;  // --verbose

  const Options& options_;
  MpiWorld& world_;
  std::optional<MpiGroup> pipeline_ranks_;  // those that are one pipeline: all, or a replica's
  std::optional<ShardSet> shards_;
  std::vector<LayerRange> stages_;
  std::optional<JobSamples> samples_;
  std::string identity_;
  std::vector<JournalRecord> kept_;  // --resume: what was finished before; where the output is made, as the next two
  HashSum kept_results_;
  int64_t kept_samples_ = 0;
  int64_t handed_out_ = 0;                     // last stages: samples finished by this run
  bool stopped_ = false;                       // by a signal
  std::optional<MicroBatches> micro_batches_;  // first stages
  BatchPlan plan_;
  GenerationPlan generation_;
  PromptSizes prompts_;
  DType compute_ = DType::kF32;
  Machine machine_;
  std::optional<ShardWeights> weights_;
  std::optional<Stage> stage_;
  std::unique_ptr<Channel> channel_;
  std::unique_ptr<ControlLink> control_;
  std::optional<Pipeline> pipeline_;
  std::optional<Generator> generator_;
  std::unique_ptr<CompletionFile> completions_;
  CompletionHash completion_hash_;            // of the last run
  std::optional<ThreadPool> result_threads_;  // last rank: for hash and output
  std::unique_ptr<OutputFile> output_;
  std::optional<Validation> validation_;
  std::optional<ResultHash> hash_;  // of the last run
  StageReport report_;
  std::vector<double> seconds_;
};

}  // namespace lfm2
