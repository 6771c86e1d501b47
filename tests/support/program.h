// Runs a program as a user would, under a time limit, and keeps what it said.
#pragma once

#include <string>
#include <vector>

namespace lfm2::test {

struct Outcome {
  int exit_code = 0;
  std::string out, err;
  double seconds = 0;

  // Lines of stderr that the program itself wrote: the launcher adds its own.
  std::vector<std::string> error_lines() const;
};

inline constexpr double kProgramTimeoutSeconds = 120;

// A signal some time after the start: to the program itself (a launcher passes USR1 and TERM on), or to one of its
// children, counted from 0 in the order of their ids.
struct Interruption {
  int signal = 0;  // 0: none
  double after_seconds = 0;
  int child = -1;
};

// `arguments` are passed on unchanged, with no shell between.
Outcome run_program(const std::vector<std::string>& arguments, const Interruption& interruption = {});
// mpirun with `ranks` ranks of lfm2_stage. Where LFM2_TEST_MACHINE is set ("--device cuda --transport nccl") its
// options come first: the same tests then run on GPUs; without it they run on the CPU.
std::vector<std::string> machine_options();
Outcome run_stage(int ranks, const std::vector<std::string>& arguments, const Interruption& interruption = {});

}  // namespace lfm2::test
