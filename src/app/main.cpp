// lfm2_stage: one rank of the pipeline. Parses, starts MPI, runs the job; every error ends here, in one line and for
// all ranks.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <system_error>
#include <thread>

#include "base/checked_file.h"
#include "base/standard_streams.h"
#include "base/stop.h"
#include "comm/deadline.h"
#include "comm/launch.h"
#include "serve/serve_job.h"
#include "stage/doctor/doctor.h"
#include "stage/job/job.h"
#include "stage/job/named_files.h"

namespace {

using namespace lfm2;

int rank_of_launch() { return launched_rank().value_or(0); }

void let_the_first_rank_speak() {  // a launcher ends all ranks when one fails
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
}

// A usage error prints one line, not one for each rank.
int end_without_mpi(const ParsedCommandLine& parsed) {
  if (rank_of_launch() == 0 && parsed.exit_code == 0)
    print_results(parsed.text);
  else if (rank_of_launch() == 0)
    std::fputs(parsed.text.c_str(), stderr);
  else if (parsed.exit_code != 0)
    let_the_first_rank_speak();
  return parsed.exit_code;
}

// Whether this is the launcher's first task. It also works before MPI starts, and if MPI will not connect the ranks
// (srun without PMIx and PMI, which sets only SLURM_PROCID) and would call each of them rank 0.
bool is_first_task() {
  const char* const task = std::getenv("SLURM_PROCID");
  return launched_rank().value_or(task == nullptr ? 0 : std::atoi(task)) == 0;
}

// Ranks that MPI does not connect would each do the whole job, and write the same output.
bool runs_alone(const MpiWorld& world, bool first_task) {
  const auto fault = ranks_that_run_alone(launched_ranks(), world.size(), mpi_library_version());
  if (!fault) return false;
  if (first_task)
    say(fmt::format("lfm2_stage: {}; {}", fault->what, fault->todo));
  else
    let_the_first_rank_speak();
  return true;
}

struct Failure {
  ExitCode code;
  std::string text;
};

Failure describe(std::exception_ptr error, bool verbose) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    const bool place = verbose || known.code() == ExitCode::kSoftware;
    return {known.code(), place ? fmt::format("{} [{}]", known.what(), known.where()) : known.what()};
  } catch (const std::bad_alloc&) {
    return {ExitCode::kUnavailable, "not enough memory"};
  } catch (const std::system_error& other) {
    const bool is_limit = other.code() == std::errc::resource_unavailable_try_again;
    if (!is_limit) return {ExitCode::kSoftware, other.what()};
    return {ExitCode::kUnavailable, fmt::format("a thread cannot be created: {} (ulimit -u)", other.code().message())};
  } catch (const std::exception& other) {
    return {ExitCode::kSoftware, other.what()};
  }
}

// The cause is printed first, because destroying the work's resources may take long.
template <class Discard>
[[noreturn]] void end_all_ranks(MpiWorld& world, const Failure& failure, const Discard& discard) {
  const bool speaks = world.claim_failure();
  if (speaks) world.say_failure(failure.text);
  discard();
  if (!speaks)  // the rank that spoke is ending all of them; where that is this one, the others remove what they were
                // making
    std::this_thread::sleep_for(std::chrono::milliseconds(world.watchdog().spoke() ? 300 : 2000));
  world.abort(failure.code);
}

// Guards what happens before the watchdog starts. The first rank reports first, and the launcher then ends the others.
Deadline deadline_of(const char* work, double seconds, const Options& options) {
  const int rank = rank_of_launch();
  return Deadline(options.timeout_seconds > 0 ? seconds + kHeadStartSeconds * rank : 0,
                  fmt::format("lfm2_stage: rank {}: {}: no end after {:g} s (--timeout {:g}): a rank is stopped or "
                              "missing, or a library hangs",
                              rank, work, seconds, options.timeout_seconds),
                  launched_rank() ? fmt::format("lfm2_stage: rank {}: {}: the launcher is gone", rank, work) : "");
}

// All ranks end here, before any destructor runs, because threads and devices may still use the work's resources.
template <class Run, class Discard>
int run_or_end_all(MpiWorld& world, bool verbose, const Run& run, const Discard& discard) {
  try {
    return static_cast<int>(run());
  } catch (...) {
    const Failure failure = describe(std::current_exception(), verbose);
    end_all_ranks(world, failure, discard);
  }
}

}  // namespace

int main(int argc, char** argv) {
  hold_standard_streams();
  ignore_file_size_signal();
  const ParsedCommandLine parsed = parse_command_line(argc, argv);
  try {
    if (!parsed.run) return end_without_mpi(parsed);
    const bool is_doctor = parsed.options.command == Command::kDoctor;
    if (parsed.options.command == Command::kChat)
      catch_conversation_signals();
    else if (!is_doctor)
      catch_stop_signals();
    // On a broken machine any call may hang; a busy machine only needs longer.
    auto deadline = std::make_unique<Deadline>(
        is_doctor ? deadline_of("doctor", max_doctor_seconds(parsed.options), parsed.options)
                  : deadline_of("start of MPI", std::max(parsed.options.timeout_seconds, 10.0), parsed.options));
    const bool first_task = is_first_task();
    MpiWorld world(&argc, &argv,
                   {.timeout_seconds = parsed.options.timeout_seconds, .stamps_file = stamps_file(parsed.options)});
    const bool verbose = parsed.options.verbose;
    if (is_doctor) {
      Doctor doctor(parsed.options, world);
      return run_or_end_all(
          world, verbose, [&] { return doctor.run(); }, [] {});
    }
    deadline.reset();
    if (runs_alone(world, first_task)) return static_cast<int>(ExitCode::kUnavailable);
    std::optional<JobFrame> job;
    std::unique_ptr<Workload> workload;
    const auto run = [&] {
      job.emplace(parsed.options, world);
      workload = make_workload(*job, serve::make_server);
      return run_job(*job, *workload);
    };
    return run_or_end_all(world, verbose, run, [&] {
      if (job) job->output.reset();
    });
  } catch (...) {  // of what begins before there are ranks
    const Failure failure = describe(std::current_exception(), parsed.options.verbose);
    say("lfm2_stage: " + failure.text);
    return static_cast<int>(failure.code);
  }
}
