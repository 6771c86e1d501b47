// A request sets a flag and no more: a signal may come anywhere, and what is finished is in the journal already.
#include "stage/support/stop.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <thread>

#include "kernels/error.h"

namespace lfm2 {

namespace {

// Launchers may pass the same request on by two ways: Slurm to a step and to the launcher in it.
constexpr int64_t kSameRequestNanoseconds = 1'000'000'000;

// The program's one global: a signal handler has no other way to say something. When the first signal came; 0: none.
std::atomic<int64_t> requested{0};
static_assert(std::atomic<int64_t>::is_always_lock_free);

void on_signal(int) {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  const int64_t now = int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  int64_t first = 0;
  if (!requested.compare_exchange_strong(first, now) && now - first > kSameRequestNanoseconds)
    ::_exit(static_cast<int>(ExitCode::kStopped));
}

}  // namespace

// Handlers are the process's, and libraries that MPI loads later replace them: LLVM's, which come with OpenCL drivers,
// drop USR1. So this thread, and all that it starts, block the signals, and one thread waits for them. Our handler is
// for a thread that was started before or that unblocks them.
void catch_stop_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigset_t caught{};
  ::sigemptyset(&caught);
  for (const int signal : {SIGUSR1, SIGTERM, SIGINT}) {
    ::sigaction(signal, &action, nullptr);
    ::sigaddset(&caught, signal);
  }
  ::pthread_sigmask(SIG_BLOCK, &caught, nullptr);
  std::thread([caught] {
    for (int signal = 0;;)
      if (::sigwait(&caught, &signal) == 0) on_signal(signal);
  }).detach();
}

bool stop_requested() { return requested != 0; }

}  // namespace lfm2
