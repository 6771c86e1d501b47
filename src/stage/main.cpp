// lfm2_stage: one rank of the pipeline. Parses, starts MPI, runs the job; every error ends here, in one line and for
// all ranks.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <thread>

#include "stage/job.h"
#include "stage/stop.h"

namespace {

using namespace lfm2;

// Set by every launcher that this program is started with (mpirun, srun with PMIx or PMI); a usage error is one line,
// not one a rank.
bool is_first_of_launch() {
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"})
    if (const char* rank = std::getenv(variable); rank != nullptr) return std::string_view(rank) == "0";
  return true;
}

int end_without_mpi(const ParsedCommandLine& parsed) {
  if (is_first_of_launch())
    std::fputs(parsed.text.c_str(), parsed.exit_code == 0 ? stdout : stderr);
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
  } catch (const std::exception& other) {
    return {ExitCode::kSoftware, other.what()};
  }
}

[[noreturn]] void end_all_ranks(MpiWorld& world, const Failure& failure) {
  if (world.claim_failure())
    fmt::print(stderr, "lfm2_stage: rank {} ({}): {}\n", world.rank(), world.host(), failure.text);
  else
    std::this_thread::sleep_for(std::chrono::seconds(2));  // the rank that spoke is ending all of them
  world.abort(failure.code);
}

}  // namespace

int main(int argc, char** argv) {
  const ParsedCommandLine parsed = parse_command_line(argc, argv);
  if (!parsed.run) return end_without_mpi(parsed);
  catch_stop_signals();
  try {
    MpiWorld world(&argc, &argv);
    Job job(parsed.options, world);
    try {
      return static_cast<int>(job.run());
    } catch (...) {
      // Here, not further out: threads and devices may still be using what the job owns.
      const Failure failure = describe(std::current_exception(), parsed.options.verbose);
      job.leave_output();
      end_all_ranks(world, failure);
    }
  } catch (const Error& error) {
    fmt::print(stderr, "lfm2_stage: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
