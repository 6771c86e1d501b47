// The state that every job has on one rank: options, ranks, samples, machine, loaded layers and the output. main owns
// it; run_job() fills it in, in the order of the members.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "comm/mpi_world.h"
#include "stage/io/finished_mark.h"
#include "stage/io/output_file.h"
#include "stage/job/backend_choice.h"
#include "stage/job/job_samples.h"
#include "stage/job/job_text.h"
#include "stage/job/options.h"
#include "stage/job/session.h"

namespace lfm2 {

// The most threads that read files; more would be limited by memory bandwidth.
inline constexpr int kMaxReaders = 16;

// --resume: the samples that an earlier run of the job has finished. Only the rank that writes the output has them.
struct Kept {
  FinishedRanges ranges;
  HashSum results;
  int64_t samples = 0;
  std::optional<FinishedMark> mark;  // if the output is complete
  bool holds(int64_t sample) const;
};

struct JobFrame {
  // Collective. Error(kUnavailable) if the ranks run different programs, else the errors of JobText.
  JobFrame(const Options& options, MpiWorld& world);

  bool is_first() const { return pipeline.rank() == 0; }
  bool is_last() const { return pipeline.rank() + 1 == pipeline.size(); }
  int64_t replica() const { return world.rank() / pipeline.size(); }
  bool makes_output() const { return is_last() && replica() == 0; }
  const ModelConfig& config() const { return shards->config(); }
  // This rank's pieces of a cut into virtual stages; several with interleaved stages.
  std::vector<LayerRange> pieces(const std::vector<LayerRange>& cut) const {
    return pieces_of(cut, pipeline.size(), pipeline.rank());
  }
  PipelineShape shape(const std::vector<LayerRange>& cut) const {
    return {.stages = pipeline.size(), .pieces = std::ssize(cut) / pipeline.size()};
  }
  double load_timeout() const;
  int result_thread_count() const;
  ThreadPool& result_threads();             // of last stages; hash and write results
  int64_t pipelines_on_host() const;        // the most pipelines on this host
  OutputJob output_job();                   // for last stages
  void say(const std::string& line) const;  // prints with --verbose
  void enter(const RankActivity& activity) const { world.watchdog().enter(activity); }
  // Stores an opened output. It is closed with the frame or, after an error, earlier.
  template <class Output>
  Output* own(std::unique_ptr<Output> opened) {
    Output* const writer = opened.get();
    output = std::move(opened);
    return writer;
  }

  Options options;
  MpiWorld& world;
  JobText text;
  MpiGroup pipeline;  // the ranks of this rank's pipeline: all ranks, or one replica
  std::optional<ShardSet> shards;
  std::optional<JobSamples> samples;
  Machine machine;
  std::string machines = {};    // the kinds of machines of all ranks, on rank 0
  DType compute = DType::kF32;  // of activations
  std::string_view dtype() const { return name(shards->products_in_fp8() ? DType::kF8 : compute); }
  std::string_view cache_dtype() const { return name(config().fp8_cache ? DType::kF8 : compute); }
  std::string identity;  // of a job with an --output: JSON
  Kept kept;
  std::optional<Session> session;
  std::optional<ThreadPool> hashers;  // see result_threads()
  std::unique_ptr<JobOutput> output;  // null if this rank writes none
};

// Opens the shards and returns the job's samples on rank 0. Rank 0 opens the files before other ranks, so that a bad
// file is reported once. Collective.
Samples check_inputs(JobFrame& job);
// Sends each rank its part of the samples. Collective.
void share_samples(JobFrame& job, Samples all);

}  // namespace lfm2
