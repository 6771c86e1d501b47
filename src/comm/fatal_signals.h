// Says in one line what a rank was doing when a library killed it, where MPI would print a stack instead, and ends the
// job. MpiChannel uses it where MPI takes GPU memory itself.
#pragma once

#include <signal.h>

#include <cstddef>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace lfm2 {

// Marks that this thread is inside a call to MPI, for as long as it lives. MPI_CHECK makes one.
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

// While it lives, a fault signal (SIGSEGV, SIGBUS, SIGABRT) inside a call to MPI ends the process with kSoftware. The
// line goes to stderr where `claim` returns true; then `end`, on a separate thread, ends all ranks. Anywhere else the
// signal does what it did before. Another thread that faults meanwhile waits for the process to end. The thread that
// constructs this object may have overflowed its stack, so its signals get another one. At most one object exists.
class FatalSignals {
 public:
  FatalSignals(const std::string& line, std::function<bool()> claim, std::function<void()> end);
  FatalSignals(const FatalSignals&) = delete;
  FatalSignals& operator=(const FatalSignals&) = delete;
  ~FatalSignals();  // on the thread that made it

 private:
  std::thread thread_;
  std::vector<std::byte> stack_;  // for signals; empty where the thread had another stack for them before
  stack_t stack_before_{};
};

}  // namespace lfm2
