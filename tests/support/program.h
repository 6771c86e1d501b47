// Runs a program as a user would, under a time limit, and keeps what it prints.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "support/shards.h"

namespace lfm2::test {

struct Outcome {
  int exit_code = 0;
  std::string out, err;
  double seconds = 0;

  // The lines of stderr that the program itself wrote, without those that the launcher adds.
  std::vector<std::string> error_lines() const;
};

inline constexpr double kProgramTimeoutSeconds = 120;

// A signal some time after the start: to the program itself (a launcher passes USR1 and TERM on), or to one of its
// children, counted from 0 in the order of their process ids.
struct Interruption {
  int signal = 0;  // 0: no signal
  double after_seconds = 0;
  int child = -1;
};

// A program that runs beside the test, in the test's working directory. `arguments` reach it unchanged, without a
// shell.
class RunningProgram {
 public:
  explicit RunningProgram(const std::vector<std::string>& arguments);
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;
  ~RunningProgram();  // kills the program if it still runs

  std::string err() const;  // what stderr holds so far
  void signal(int number) const;
  pid_t process_of(int rank) const;  // for a launcher: the process of this rank; 0 where there is none
  // Waits for the end of the program, for at most kProgramTimeoutSeconds.
  Outcome wait(const Interruption& interruption = {});

 private:
  TemporaryFolder folder_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  pid_t child_ = 0;  // 0 once it was waited for
};
Outcome run_program(const std::vector<std::string>& arguments, const Interruption& interruption = {});
// weights-tools, which must succeed.
void run_weights_tools(std::vector<std::string> arguments);
// mpirun with `ranks` ranks of lfm2_stage. Options in LFM2_TEST_MACHINE ("--device cuda --transport nccl") come first,
// so that the same tests run on GPUs; without it they run on the CPU. With LFM2_TEST_GPUS, the number of GPUs, a rank
// sees its own alone (own_gpu.sh).
std::vector<std::string> machine_options();
bool on_gpus();
std::vector<std::string> mpi_command(int ranks, const std::string& program);
std::vector<std::string> stage_command(int ranks, const std::vector<std::string>& arguments);
Outcome run_stage(int ranks, const std::vector<std::string>& arguments, const Interruption& interruption = {});

}  // namespace lfm2::test
