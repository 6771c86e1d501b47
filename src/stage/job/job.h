// One job on one rank, from the checked options to the exit code. run_job() is the order of every job; a Workload is
// what one kind of job computes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "stage/job/job_frame.h"
#include "stage/report/report.h"

namespace lfm2 {

// The choices that are made before the weights are loaded.
struct JobPlan {
  std::vector<LayerRange> cut;  // the layers of the virtual stages, in their order
  // Of the largest micro-batch or step:
  int64_t tokens = 0, rows = 0;
  int buffers = kBuffers;
  uint64_t job_bytes = 0;    // memory on this rank that grows with the job and is not allocated yet
  const char* options = "";  // the options that reduce it
};

// The result of a run on this rank.
struct RunEnd {
  bool finished = false;         // false: a signal stopped it
  int64_t finished_samples = 0;  // last stages
};

// The figures of the last run, as far as the workload has them. Before a run there are none.
struct Figures {
  StageReport stage = {};
  JobReport job = {};
  const char* unit = "";  // the unit of the trace
  std::vector<TraceEvent> trace = {};
};

// What a job computes. run_job() calls the functions in this order; constructors get the frame.
class Workload {
 public:
  virtual ~Workload() = default;
  // Adds the workload's facts on which results depend to the identity of the job. Rank 0.
  virtual void add_to_identity(Json& identity) const = 0;
  // Continues the output of an earlier run, on the rank that writes it.
  virtual void resume(Unfinished& begun) = 0;
  // On that rank, adds the facts about all samples that an earlier run has finished.
  virtual void add_kept(JobReport&) {}
  virtual JobPlan plan() = 0;                  // collective
  virtual void before_loading() {}             // called after all checks that need no weights
  virtual void open(const JobPlan& plan) = 0;  // creates engine and output after the weights are loaded; collective
  virtual RunEnd run() = 0;
  virtual void end_runs() {}  // collective
  virtual Figures figures() const = 0;
  virtual NotFinite not_finite() const = 0;  // results of this rank, so far
};

class Traffic;
using MakeTraffic = std::function<std::unique_ptr<Traffic>(JobFrame& job)>;

// Creates the workload for the options: a scoring or a generation. `make_server` makes the Traffic of a server, which
// this folder must not include.
std::unique_ptr<Workload> make_workload(JobFrame& job, const MakeTraffic& make_server);

// Runs the job. After an error the caller closes job.output, so that finished samples stay for --resume. Everything
// else stays alive, because the device or a thread may still use it.
ExitCode run_job(JobFrame& job, Workload& workload);

// The parts of run_job() that serve --resume (job_resume.cpp). All but mark_finished() and say_not_finite() are
// collective.

// Compares the job with the resumed one, and leaves out the finished samples.
void leave_out_finished(JobFrame& job, Workload& workload);
// The kinds of machines of all ranks, on rank 0, such as "CPU, avx512". Results depend on them. Collective.
std::string kinds_of_machines(const JobFrame& job);
// Ends a job whose samples an earlier run has all finished. The output only needs its final name, so no weights are
// loaded.
ExitCode finish_without_run(JobFrame& job, Workload& workload);
// Checks that all samples are finished before the output gets its name: Error(kSoftware) on rank 0. `finished_here`:
// number of samples that this run finished on this rank.
void expect_all_samples(const JobFrame& job, int64_t finished_here);
// Ends a job that a signal has stopped. All ranks stopped between the same two micro-batches or steps.
ExitCode finish_stopped(JobFrame& job, const Workload& workload, int64_t finished_here);
// With --resume, on the rank that wrote the output. Without this mark the output is complete, too.
void mark_finished(const JobFrame& job, const std::string& found);
// Prints to stderr, even with --quiet, because a reader of the output would take such results for the model's.
void say_not_finite(const JobFrame& job, const NotFinite& found);

}  // namespace lfm2
