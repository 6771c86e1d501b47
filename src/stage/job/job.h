// One job on one rank, from the checked options to the exit code: what scoring and generating have in common. main owns
// the job, and ends all ranks where it throws.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json/json_fwd.h"
#include "base/thread_pool.h"
#include "comm/mpi_world.h"
#include "stage/io/finished_mark.h"
#include "stage/io/output_file.h"
#include "stage/job/backend_choice.h"
#include "stage/job/job_samples.h"
#include "stage/job/job_text.h"
#include "stage/job/options.h"
#include "stage/job/session.h"
#include "stage/report/report.h"

namespace lfm2 {

class Job {
 public:
  virtual ~Job() = default;
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  ExitCode run();
  // To be called after an error: closes the output, so that what is finished stays for --resume. Everything else stays
  // alive, because the device or a thread may still use it.
  virtual void leave_output() = 0;

 protected:
  Job(const Options& options, MpiWorld& world, JobText text)
      : options_(options), world_(world), text_(std::move(text)) {}

  // The largest micro-batch or step.
  struct Portion {
    int64_t tokens = 0, rows = 0;
    int buffers = kBuffers;
    uint64_t job_bytes = 0;    // memory that grows with the job, on this rank, and is not allocated yet
    const char* options = "";  // the options that make it smaller
  };
  struct Trace {
    const char* unit;
    const std::vector<TraceEvent>& events;
  };

  // The parts in which scoring and generating differ, in the order in which run() calls them.
  virtual void check_samples(const Samples&) const {}  // on rank 0, before anything else uses the samples
  // Whether the rank must know where each sample begins: see JobSamples.
  virtual bool lists_offsets(int rank) const = 0;
  virtual int64_t ranks_at_once() const { return world_.size(); }  // the most that compute at a time
  virtual void add_to_identity(Json&) const {}                     // adds what else the results depend on
  virtual JobOutput& resume_output_file(Unfinished& begun) = 0;    // on the rank that makes the output
  virtual void plan() = 0;  // chooses sizes and cuts the layers, before anything is loaded; collective
  virtual Portion portion() const = 0;
  virtual void before_loading() {}        // once everything is checked that can be checked before
  virtual void open() = 0;                // makes engine and output, once the weights are loaded; collective
  virtual bool run_once() = 0;            // false: a signal stopped the run
  virtual void end_runs() {}              // collective
  virtual JobOutput* output() const = 0;  // null where this rank writes no output
  // Where an earlier run has finished all samples, on the rank that makes the output.
  virtual std::optional<Verdict> verdict_of_kept() { return {}; }
  virtual std::optional<ScoreSums> scores_of_kept() { return {}; }
  virtual NotFinite not_finite() const = 0;  // of the last run, where this rank writes or hashes results
  virtual Trace trace() const = 0;
  virtual void add_to(StageReport& report) const = 0;
  virtual void add_to(JobReport& report) const = 0;

  bool is_first() const { return pipeline_ranks_->rank() == 0; }
  bool is_last() const { return pipeline_ranks_->rank() + 1 == pipeline_ranks_->size(); }
  int64_t replica() const { return world_.rank() / pipeline_ranks_->size(); }
  bool makes_output() const { return is_last() && replica() == 0; }
  // The layers of this rank, which are one piece but where micro-batches go round a ring.
  std::vector<LayerRange> pieces() const { return pieces_of(cut_, pipeline_ranks_->size(), pipeline_ranks_->rank()); }
  LayerRange layers() const { return cut_[static_cast<size_t>(pipeline_ranks_->rank())]; }
  PipelineShape shape() const {
    return {.stages = pipeline_ranks_->size(), .pieces = std::ssize(cut_) / pipeline_ranks_->size()};
  }
  const ModelConfig& config() const { return shards_->config(); }
  double load_timeout() const;
  int result_thread_count() const;
  ThreadPool& result_threads();             // of last stages: they hash and write results
  int64_t pipelines_on_host() const;        // as many replicas as there may be on this host
  OutputJob output_job();                   // for last stages
  void say(const std::string& line) const;  // prints with --verbose

  // --resume: the samples that an earlier run of the job has finished. Only the rank that makes the output has them.
  struct Kept {
    FinishedRanges ranges;
    HashSum results;
    int64_t samples = 0;
    std::optional<FinishedMark> mark;  // where the output is whole
    bool holds(int64_t sample) const;
  };
  // What the runs of this job have done so far.
  struct Runs {
    std::vector<double> seconds;  // duration of each run that counts
    int64_t handed_out = 0;       // last stages: samples that the last run finished
    bool stopped = false;         // whether a signal ended a run
  };

  Options options_;
  MpiWorld& world_;
  JobText text_;
  std::optional<MpiGroup> pipeline_ranks_;  // the ranks of this rank's pipeline: all ranks, or those of a replica
  std::optional<ShardSet> shards_;
  std::optional<JobSamples> samples_;
  std::vector<LayerRange> cut_;  // the virtual stages, in their order
  Machine machine_;
  DType compute_ = DType::kF32;
  Kept kept_;
  Runs runs_;
  std::optional<Session> session_;

 private:
  std::optional<ThreadPool> result_threads_;
  void form_pipelines();
  void open_shards();
  void prepare_scoring(Samples& samples);
  // Returns the job's samples on rank 0. Rank 0 opens the files before the others, so that a bad file is reported once.
  Samples check_inputs();
  Samples read_input();
  void share_job(Samples all);
  void leave_out_finished();
  void open_unfinished_output();
  std::string identity(const std::vector<std::string>& machines) const;
  void check_memory() const;
  void load_weights();
  void run_repeatedly();
  bool is_stopped_before_loading();  // collective
  ExitCode finish();
  StageReport stage_report() const;
  std::string write_report(const std::vector<std::string>& stages) const;
  void mark_finished(const std::string& found) const;
  void say_not_finite(const NotFinite& found) const;
  ExitCode finish_without_run();
  virtual ExitCode finish_stopped();
  int64_t count_finished();
  void expect_all_samples();
  void enter(const Place& place) const;

  std::string identity_;
  double load_seconds_ = 0;
};

using MakeJob = std::function<std::unique_ptr<Job>(const Options&, MpiWorld&, JobText)>;

// Makes the job that the options ask for: one that scores samples, or one that continues them. The one that serves is
// above this folder: `make_serving_job` makes it.
std::unique_ptr<Job> make_job(const Options& options, MpiWorld& world, const MakeJob& make_serving_job);

}  // namespace lfm2
