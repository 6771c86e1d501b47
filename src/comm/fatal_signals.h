// Reports in one line what a rank was doing when a library killed it, instead of the stack that MPI would print, and
// ends the job. MpiChannel uses this if MPI accepts GPU memory.
#pragma once

#include <signal.h>

#include <cstddef>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace lfm2 {

// Marks this thread as inside a call to MPI during its lifetime. MPI_CHECK makes one.
class InsideMpi {
 public:
  InsideMpi() { depth_ = depth_ + 1; }
  InsideMpi(const InsideMpi&) = delete;
  InsideMpi& operator=(const InsideMpi&) = delete;
  ~InsideMpi() { depth_ = depth_ - 1; }
  static bool now() { return depth_ > 0; }

 private:
  static constinit thread_local volatile int depth_;
};

// During its lifetime, a fault signal (SIGSEGV, SIGBUS, SIGABRT) inside a call to MPI ends the process with kSoftware.
// The line goes to stderr if `claim` returns true; then `end`, on a separate thread, ends all ranks. Outside MPI the
// signal has its earlier effect. Another thread that faults meanwhile waits for the process to end. Signals of the
// constructing thread run on a separate stack, because its own may have overflowed. At most one object exists.
class FatalSignals {
 public:
  FatalSignals(const std::string& line, std::function<bool()> claim, std::function<void()> end);
  FatalSignals(const FatalSignals&) = delete;
  FatalSignals& operator=(const FatalSignals&) = delete;
  ~FatalSignals();  // on the thread that made it

 private:
  std::thread thread_;
  std::vector<std::byte> stack_;  // for signals; empty if the thread already had a separate stack for them
  stack_t stack_before_{};
};

}  // namespace lfm2
