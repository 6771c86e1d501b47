// The handler sets a flag and no more: a signal may come anywhere, and what is finished is in the journal already.
#include "stage/stop.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

#include "kernels/error.h"

namespace lfm2 {

namespace {

// The program's one global: a signal handler has no other way to say something.
std::atomic<bool> requested{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void on_signal(int) {
  if (requested.exchange(true)) ::_exit(static_cast<int>(ExitCode::kStopped));
}

}  // namespace

void catch_stop_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGUSR1, SIGTERM, SIGINT}) ::sigaction(signal, &action, nullptr);
}

bool stop_requested() { return requested; }

}  // namespace lfm2
