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

#include "comm/deadline.h"
#include "kernels/standard_streams.h"
#include "serve/serve_job.h"
#include "stage/doctor/doctor.h"
#include "stage/job/job.h"
#include "stage/job/named_files.h"
#include "stage/support/stop.h"

namespace {

using namespace lfm2;

// Set by every launcher that this program is started with (mpirun, srun with PMIx or PMI); a usage error is one line,
// not one a rank.
std::optional<int> launched_rank() {
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"})
    if (const char* rank = std::getenv(variable); rank != nullptr) return std::atoi(rank);
  return {};
}
int rank_of_launch() { return launched_rank().value_or(0); }

int end_without_mpi(const ParsedCommandLine& parsed) {
  if (rank_of_launch() == 0 && parsed.exit_code == 0)
    print_results(parsed.text);
  else if (rank_of_launch() == 0)
    std::fputs(parsed.text.c_str(), stderr);
  else if (parsed.exit_code != 0)
    std::this_thread::sleep_for(
        std::chrono::milliseconds(500));  // a launcher ends all when one fails: let the first speak
  return parsed.exit_code;
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

// The cause is said first: letting go of what the work owns may take long.
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

// What begins before the watchdog does. The first rank speaks first, and with it the launcher ends the others.
Deadline deadline_of(const char* work, double seconds, const Options& options) {
  constexpr double kHeadStart = 4;  // launchers take seconds to end the others
  const int rank = rank_of_launch();
  return Deadline(options.timeout_seconds > 0 ? seconds + kHeadStart * rank : 0,
                  fmt::format("lfm2_stage: rank {}: {}: no end after {:g} s (--timeout {:g}): a rank is stopped or "
                              "missing, or a library hangs",
                              rank, work, seconds, options.timeout_seconds),
                  launched_rank() ? fmt::format("lfm2_stage: rank {}: {}: the launcher is gone", rank, work) : "");
}

// A machine that needs a doctor may hang anywhere.
Deadline doctors_deadline(const Options& options) {
  return deadline_of("doctor", max_doctor_seconds(options), options);
}

Deadline start_deadline(const Options& options) {
  constexpr double kLeastSeconds = 10;  // a busy machine
  return deadline_of("start of MPI", std::max(options.timeout_seconds, kLeastSeconds), options);
}

// All ranks end from inside here, not further out: threads and devices may still be using what the work owns.
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
  const ParsedCommandLine parsed = parse_command_line(argc, argv);
  try {
    if (!parsed.run) return end_without_mpi(parsed);
    if (parsed.options.chat)
      catch_conversation_signals();
    else if (!parsed.doctor)
      catch_stop_signals();
    auto deadline =
        std::make_unique<Deadline>(parsed.doctor ? doctors_deadline(parsed.options) : start_deadline(parsed.options));
    MpiWorld world(&argc, &argv,
                   {.timeout_seconds = parsed.options.timeout_seconds, .stamps_file = stamps_file(parsed.options)});
    const bool verbose = parsed.options.verbose;
    if (parsed.doctor) {
      Doctor doctor(parsed.options, world);
      return run_or_end_all(
          world, verbose, [&] { return doctor.run(); }, [] {});
    }
    deadline.reset();
    std::unique_ptr<Job> job;
    const auto run = [&] {
      job = make_job(parsed.options, world, serve::make_serve_job);
      return job->run();
    };
    return run_or_end_all(world, verbose, run, [&] {
      if (job) job->leave_output();
    });
  } catch (...) {  // of what begins before there are ranks
    const Failure failure = describe(std::current_exception(), parsed.options.verbose);
    say("lfm2_stage: " + failure.text);
    return static_cast<int>(failure.code);
  }
}
