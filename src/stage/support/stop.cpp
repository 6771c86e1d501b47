// The handler only sets a flag: a signal may come at any moment, and what is finished is in the journal anyway.
#include "stage/support/stop.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "kernels/error.h"

namespace lfm2 {

namespace {

// Launchers may deliver one request twice: Slurm signals a step and also the launcher inside it.
constexpr int64_t kSameRequestNanoseconds = 1'000'000'000;

// The program's one global, since a signal handler can reach nothing else: the time of the first signal, 0 before it.
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
  ::pthread_sigmask(SIG_UNBLOCK, &caught, nullptr);
}

bool stop_requested() { return requested != 0; }

}  // namespace lfm2
