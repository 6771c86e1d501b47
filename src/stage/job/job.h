// One job on one rank, from the checked options to the exit code: run_job() is what all jobs have in common, a Workload
// what they differ in.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "stage/job/job_frame.h"
#include "stage/report/report.h"

namespace lfm2 {

// What is chosen before anything is loaded.
struct JobPlan {
  std::vector<LayerRange> cut;  // the layers of the virtual stages, in their order
  // Of the largest micro-batch or step:
  int64_t tokens = 0, rows = 0;
  int buffers = kBuffers;
  uint64_t job_bytes = 0;    // memory that grows with the job, on this rank, and is not allocated yet
  const char* options = "";  // the options that make it smaller
};

// What a run has done on this rank.
struct RunEnd {
  bool finished = false;         // false: a signal stopped it
  int64_t finished_samples = 0;  // last stages
};

// The figures of the last run, as far as the workload knows them. Before a run there are none.
struct Figures {
  StageReport stage = {};
  JobReport job = {};
  const char* unit = "";  // what the trace counts
  std::vector<TraceEvent> trace = {};
};

// What a job computes. run_job() calls the functions in this order; a constructor gets the frame.
class Workload {
 public:
  virtual ~Workload() = default;
  // Adds to the identity of the job what else its results depend on. Rank 0.
  virtual void add_to_identity(Json& identity) const = 0;
  // Continues the output of an earlier run, on the rank that makes it.
  virtual void resume(Unfinished& begun) = 0;
  // What is known of samples that an earlier run has finished, all of them, on that rank.
  virtual void add_kept(JobReport&) {}
  virtual JobPlan plan() = 0;                  // collective
  virtual void before_loading() {}             // once everything is checked that can be checked before
  virtual void open(const JobPlan& plan) = 0;  // makes engine and output, once the weights are loaded; collective
  virtual RunEnd run() = 0;
  virtual void end_runs() {}  // collective
  virtual Figures figures() const = 0;
  virtual NotFinite not_finite() const = 0;  // results of this rank, so far
};

class Traffic;
using MakeTraffic = std::function<std::unique_ptr<Traffic>(JobFrame& job)>;

// What the options ask for: samples to score, or a generation. `make_server` stands for the clients of a server, which
// are above this folder.
std::unique_ptr<Workload> make_workload(JobFrame& job, const MakeTraffic& make_server);

// After an error the caller closes job.output, so that finished samples stay for --resume. Everything else stays alive,
// because the device or a thread may still use it.
ExitCode run_job(JobFrame& job, Workload& workload);

// The parts of run_job() that continue an earlier run, or leave something to a later one (job_resume.cpp). All but
// mark_finished() and say_not_finite() are collective.

// Compares the job with the one that is to be resumed, and leaves out the samples that are finished.
void leave_out_finished(JobFrame& job, Workload& workload);
// Ends a job of which an earlier run has finished all samples: the output only needs its final name, so no weights are
// loaded.
ExitCode finish_without_run(JobFrame& job, Workload& workload);
// Before an output gets its name. Error(kSoftware) on rank 0. `finished_here`: samples, by this run on this rank.
void expect_all_samples(const JobFrame& job, int64_t finished_here);
// Ends a job that a signal has stopped. All ranks have come here between two micro-batches or steps.
ExitCode finish_stopped(JobFrame& job, const Workload& workload, int64_t finished_here);
// With --resume, on the rank that made the output. The output is whole whether or not this can be written.
void mark_finished(const JobFrame& job, const std::string& found);
// On stderr, also with --quiet: whoever reads the output alone would take such results for the model's.
void say_not_finite(const JobFrame& job, const NotFinite& found);

}  // namespace lfm2
