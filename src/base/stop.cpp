// A signal handler only sets atomics. A signal may arrive at any instant; finished samples are already in the journal.
#include "base/stop.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/error.h"

namespace lfm2 {

namespace {

// Launchers may deliver one request twice: Slurm signals a step and also the launcher inside it.
constexpr int64_t kSameRequestNanoseconds = 1'000'000'000;

// The only globals of the programs, since a signal handler can reach nothing else.
std::atomic<int> newest_signal{0};
std::atomic<int> answers_interrupted{0};
std::atomic<int64_t> first_request{0};  // time of the first signal in nanoseconds, 0 before it
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);

void remember(int signal) { newest_signal = signal; }

// A later TERM, INT or HUP ends the process at once, because a person insists. Other signals do not: batch systems
// repeat theirs, and the kernel repeats XCPU with each second of CPU time.
bool insists(int signal) { return signal == SIGTERM || signal == SIGINT || signal == SIGHUP; }

void remember_or_end(int signal) {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  const int64_t now = int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  int64_t first = 0;
  if (!first_request.compare_exchange_strong(first, now) && now - first > kSameRequestNanoseconds && insists(signal))
    ::_exit(static_cast<int>(ExitCode::kStopped));
  remember(signal);
}

void set_handler(const std::vector<int>& signals, void (*handler)(int), unsigned flags) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = static_cast<int>(flags);
  for (const int signal : signals) ::sigaction(signal, &action, nullptr);
}

// Libraries that MPI loads later may replace the process's handlers: LLVM, which comes with OpenCL drivers, drops USR1.
// So this thread, and all threads that it starts, block the signals, and one thread waits for them. The handlers serve
// threads that started earlier or unblock the signals.
void wait_for_signals(const std::vector<int>& signals, void (*handler)(int)) {
  set_handler(signals, handler, SA_RESTART);
  sigset_t caught{};
  ::sigemptyset(&caught);
  for (const int signal : signals) ::sigaddset(&caught, signal);
  ::pthread_sigmask(SIG_BLOCK, &caught, nullptr);
  std::thread([caught, handler] {
    for (int signal = 0;;)
      if (::sigwait(&caught, &signal) == 0) handler(signal);
  }).detach();
}

void count_interrupt_or_end(int signal) {
  if (signal == SIGINT || signal == SIGUSR2)
    ++answers_interrupted;
  else
    remember_or_end(signal);
}

}  // namespace

void catch_stop_signals() {
  std::vector<int> signals{SIGUSR1, SIGUSR2, SIGTERM, SIGINT, SIGXCPU};
  struct sigaction before {};
  if (::sigaction(SIGHUP, nullptr, &before) == 0 && before.sa_handler != SIG_IGN) signals.push_back(SIGHUP);  // nohup
  wait_for_signals(signals, remember_or_end);
}

void catch_conversation_signals() {
  wait_for_signals({SIGUSR1, SIGTERM, SIGINT, SIGUSR2, SIGXCPU}, count_interrupt_or_end);
}

void catch_interrupts() { set_handler({SIGINT, SIGTERM, SIGHUP}, remember, SA_RESETHAND); }

int interrupts() { return answers_interrupted; }

int stop_signal() { return newest_signal; }

bool stop_requested() { return stop_signal() != 0; }

}  // namespace lfm2
