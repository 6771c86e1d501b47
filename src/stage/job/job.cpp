// The order of a job: check everything that can be checked cheaply, load, compute, write, report.
#include "stage/job/job.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <span>

#include "base/host_memory.h"
#include "base/standard_streams.h"
#include "base/stop.h"
#include "comm/mpi_control_link.h"
#include "stage/job/generation_job.h"
#include "stage/job/scoring_job.h"
#include "stage/pipeline/trace_writer.h"
#include "stage/report/end_table.h"
#include "stage/shards/fp8_weights.h"
#include "stage/version.h"

namespace lfm2 {

namespace {

// The results of this job's runs so far.
struct Runs {
  std::vector<double> seconds;   // duration of each run that counts
  int64_t finished_samples = 0;  // last stages: by the last run
  bool stopped = false;          // whether a signal ended a run
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// A single text is on one rank at a time, because each token waits for the previous one. A conversation is a single
// text. The chunks of a long prompt follow each other through the ranks, which then share the processors.
int64_t ranks_at_once(const JobFrame& job) {
  if (!job.text.continues() || job.options.command == Command::kServe) return job.world.size();
  const int64_t wanted = job.options.generation.max_sequences,
                texts = std::max<int64_t>(1, job.samples->size().samples);
  return wanted > 0 ? std::min(texts, wanted * job.options.replicas) : texts;
}

void check_memory(const JobFrame& job, const JobPlan& plan) {
  if (job.machine.cuda) return;  // memory of a GPU is not overcommitted: an allocation that does not fit fails at once
  const StageMemory cost = stage_memory(*job.shards, job.pieces(plan.cut), job.compute, plan.tokens, plan.rows);
  const auto needed = static_cast<uint64_t>(job.world.sum_on_host(
      static_cast<int64_t>(cost.total_bytes(static_cast<uint64_t>(plan.buffers)) + plan.job_bytes)));
  const uint64_t available = available_host_memory();
  if (available > 0 && needed > available)
    throw Error(ExitCode::kUnavailable,
                fmt::format("{} ranks on {} need {:.2f} GB of memory, {:.2f} GB are available: use more hosts, or a "
                            "smaller {}",
                            job.world.local_size(), job.world.host(), static_cast<double>(needed) / 1e9,
                            static_cast<double>(available) / 1e9, plan.options));
}

// Returns the seconds that it took.
double load_weights(JobFrame& job, const JobPlan& plan) {
  job.enter({.phase = Phase::kLoad});
  const auto start = std::chrono::steady_clock::now();
  uint64_t bytes = 0;
  for (const ShardTensor* tensor : stage_tensors(*job.shards, job.pieces(plan.cut))) bytes += tensor->bytes;
  Progress progress("load", bytes, Progress::Unit::kBytes,
                    job.world.rank() == 0 ? job.options.progress : ProgressMode::kOff,
                    [&job] { job.world.watchdog().pulse(); });
  PipelineRank rank{
      .backend = *job.machine.backend,
      .watchdog = job.world.watchdog(),
      .index = job.pipeline.rank(),
      .stages = job.pipeline.size(),
      .pieces = job.pieces(plan.cut),
      .compute = job.compute,
      .make_channel = [&job](const ChannelShape& shape) { return make_channel(job.pipeline, job.machine, shape); },
      .control = std::make_unique<MpiControlLink>(job.pipeline)};
  job.session.emplace(*job.shards, std::move(rank), progress,
                      std::min(job.world.fair_share_of_processors(), kMaxReaders));
  const double seconds = seconds_since(start);
  job.say(fmt::format("loaded {:.2f} GB in {:.2f} s", static_cast<double>(bytes) / 1e9, seconds));
  return seconds;
}

// Calls and times Workload::run() on all ranks together, --benchmark times or once. Ends early if a run was stopped on
// any rank.
Runs run_repeatedly(const JobFrame& job, Workload& workload) {
  Runs all;
  const int runs = job.options.benchmark ? job.options.warmup + job.options.repeat : 1;
  for (int run = 0; run < runs && !all.stopped; ++run) {
    job.world.barrier(job.options.timeout_seconds, "start of a run");
    const auto start = std::chrono::steady_clock::now();
    const RunEnd end = workload.run();
    // Replicas may end far apart, on hosts that do not see each other's stamps, so this barrier has no limit. A rank
    // that hangs is noticed by the ranks of its own pipeline. Those of a server end together.
    const bool apart = job.options.replicas > 1 && !is_live(job.options.command);
    job.world.barrier(apart ? std::numeric_limits<double>::infinity() : job.options.timeout_seconds, "end of a run");
    if (!job.options.benchmark || run >= job.options.warmup) all.seconds.push_back(seconds_since(start));
    all.finished_samples = end.finished_samples;
    all.stopped = job.world.smallest(end.finished ? 1 : 0, job.options.timeout_seconds) == 0;
  }
  return all;
}

StageReport stage_report(const JobFrame& job, const JobPlan& plan, double load_seconds, StageReport report) {
  report.rank = job.world.rank();
  report.stage = job.pipeline.rank();
  report.pieces = job.pieces(plan.cut);
  report.host = job.world.host();
  report.device = job.machine.backend->description();
  report.load_seconds = load_seconds;
  report.weight_bytes += job.session->weight_bytes();  // beside those of a drafter
  report.peak_host_bytes = peak_host_bytes();
  return report;
}

// Prints and writes the report, on rank 0. Returns its summary, or "" if the comparison with a reference failed.
std::string write_report(const JobFrame& job, const PipelineShape& shape, const Runs& runs, JobReport report) {
  report.model_type = job.config().type_name();
  report.dtype = job.dtype();
  report.fp8 = fp8_kind(*job.shards);
  report.adapters = job.shards->adapters();
  report.cache_dtype = job.cache_dtype();
  report.transport = job.pipeline.size() == 1 ? "no transport" : job.machine.transport_name();
  report.version = kVersionText;
  report.layers = job.config().layers;
  report.virtual_stages = shape.pieces;
  report.samples = job.samples->left().samples;
  report.tokens = job.samples->left().tokens;
  report.replicas = job.options.replicas;
  report.error_answers = static_cast<int64_t>(job.samples->errors().size());
  report.kept_samples = job.samples->size().samples - job.samples->left().samples;
  report.results = job.options.results;
  report.seconds = runs.seconds;
  report.results_xxh3 = merged_results_xxh3(report.stages);
  report.verdict = merged_verdict(report.stages);
  report.generation = merged_generation(report.stages);
  if (is_live(job.options.command) && report.generation) {  // its requests come during the run
    report.samples = report.generation->scheduled.requests;
    report.tokens = report.generation->scheduled.prompt_tokens;
  }
  report.scores = merged_scores(report.stages);
  report.not_finite = merged_not_finite(report.stages);
  if (!job.options.report.empty()) {
    const std::string text = to_json(report);
    AtomicFile file(job.options.report);
    file.write(std::as_bytes(std::span(text)));
    file.commit();
  }
  if (!job.options.quiet) print_results(end_table(report));
  say_not_finite(job, report.not_finite);
  return !report.verdict || report.verdict->valid() ? found_text(report) : "";
}

// Ends a job whose samples are all computed, on all ranks with the same exit code.
ExitCode finish(JobFrame& job, const Workload& workload, const JobPlan& plan, const Runs& runs, double load_seconds) {
  expect_all_samples(job, runs.finished_samples);
  // The rank that created the file renames it, after all other ranks have synced their rows.
  if (job.output && !job.makes_output()) job.output->commit();
  job.world.barrier(job.load_timeout(), "results written");
  if (job.output && job.makes_output()) job.output->commit();
  Figures figures = workload.figures();
  if (!job.options.trace.empty())
    write_trace(job.world,
                {.rank = job.world.rank(),
                 .device = job.machine.backend->description(),
                 .unit = figures.unit,
                 .shape = job.shape(plan.cut),
                 .events = std::move(figures.trace)},
                job.options.trace, job.options.timeout_seconds);
  figures.job.stages = job.world.gather_values(stage_report(job, plan, load_seconds, std::move(figures.stage)), 0,
                                               job.load_timeout(), "figures");
  std::string found;
  if (job.world.rank() == 0) found = write_report(job, job.shape(plan.cut), runs, std::move(figures.job));
  found = job.world.broadcast(found, 0, job.load_timeout(), "verdict");
  if (!found.empty()) mark_finished(job, found);
  job.enter({.phase = Phase::kEnd});
  return found.empty() ? ExitCode::kInvalid : ExitCode::kOk;
}

}  // namespace

std::unique_ptr<Workload> make_workload(JobFrame& job, const MakeTraffic& make_server) {
  if (!job.text.continues()) return std::make_unique<ScoringJob>(job);
  return std::make_unique<GenerationJob>(job,
                                         job.options.command == Command::kServe ? make_server(job) : make_traffic(job));
}

ExitCode run_job(JobFrame& job, Workload& workload) {
  job.enter({.phase = Phase::kRead});
  share_samples(job, check_inputs(job));
  job.enter({.phase = Phase::kPrepare, .limit_seconds = kStartTimeout});
  job.machine = choose_machine(job.options, job.world, ranks_at_once(job));
  job.enter({.phase = Phase::kRead});
  if (!job.config().note.empty() && job.world.rank() == 0)
    say(fmt::format("lfm2_stage: {}: {}", job.options.weights.string(), job.config().note));
  if (job.pipeline.size() > 1) job.say("hidden states go over " + job.machine.transport_name());
  if (job.machine.cuda) expect_gpu_computes(job.config(), job.options.weights.string());
  job.compute = job.shards->choose_dtype(job.options.dtype);
  job.shards->choose_cache_dtype(job.options.cache_dtype, job.compute);
  job.machines = kinds_of_machines(job);
  leave_out_finished(job, workload);
  if (job.samples->left().samples == 0) return finish_without_run(job, workload);
  const JobPlan plan = workload.plan();
  check_memory(job, plan);
  if (!job.world.all_ranks(!stop_requested(), job.load_timeout())) return finish_stopped(job, workload, 0);
  workload.before_loading();
  const double load_seconds = load_weights(job, plan);
  job.enter({.phase = Phase::kPrepare, .limit_seconds = job.load_timeout()});
  job.world.barrier(job.load_timeout(), "weights loaded");
  workload.open(plan);
  const Runs runs = run_repeatedly(job, workload);
  job.enter({.phase = Phase::kWrite});
  workload.end_runs();
  return runs.stopped ? finish_stopped(job, workload, runs.finished_samples)
                      : finish(job, workload, plan, runs, load_seconds);
}

}  // namespace lfm2
