// The handler calls nothing that may wait for a lock of the interrupted code. The thread that ends the job may do so,
// and passes the exit code to the launcher.
#include "comm/fatal_signals.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <utility>

#include "base/error.h"

namespace lfm2 {

namespace {

constexpr std::array kSignals{SIGSEGV, SIGBUS, SIGABRT};
constexpr unsigned kMaxEnding = 5;  // seconds
// The handler's stack; AMX tile registers alone need some 11 KB of it.
constexpr size_t kStackBytes = size_t{128} << 10;

std::string fatal_line;
std::function<bool()> may_say;
std::array<struct sigaction, kSignals.size()> handlers_before;
std::array<int, 2> wake_up{-1, -1};  // a pipe: the handler writes what the thread reads
std::atomic<bool> ending = false;
pthread_t thread_that_ends;
constinit thread_local volatile bool in_handler = false;

void pass_on(int signal) {
  for (size_t i = 0; i < kSignals.size(); ++i)
    if (kSignals[i] == signal) sigaction(signal, &handlers_before[i], nullptr);
  raise(signal);  // is delivered after this handler has returned
}

// A second fault of this thread has its default effect, because its signals are blocked in here. abort() arrives here,
// too.
void end_by_signal(int signal) {
  if (!InsideMpi::now() && !ending) {
    pass_on(signal);
    return;
  }
  if (ending.exchange(true)) {
    if (in_handler || pthread_equal(pthread_self(), thread_that_ends) != 0)
      _exit(static_cast<int>(ExitCode::kSoftware));  // ending the job failed, too
    while (true) pause();                            // the process ends soon
  }
  in_handler = true;
  const bool says = may_say();
  if (says && write(STDERR_FILENO, fatal_line.data(), fatal_line.size()) < 0) _exit(static_cast<int>(ExitCode::kIo));
  const char word = 1;
  unsigned left = write(wake_up[1], &word, 1) == 1 ? kMaxEnding : 0;
  while (left > 0) left = sleep(left);  // other signals wake it
  _exit(static_cast<int>(ExitCode::kSoftware));
}

}  // namespace

constinit thread_local volatile int InsideMpi::depth_ = 0;

FatalSignals::FatalSignals(const std::string& line, std::function<bool()> claim, std::function<void()> end_all) {
  fatal_line = line + "\n";
  may_say = std::move(claim);
  expect(pipe2(wake_up.data(), O_CLOEXEC) == 0, "FatalSignals: no pipe");
  thread_ = std::thread([end_all = std::move(end_all)] {
    char word = 0;
    if (read(wake_up[0], &word, 1) == 1) end_all();
  });
  thread_that_ends = thread_.native_handle();
  sigaltstack(nullptr, &stack_before_);
  if ((stack_before_.ss_flags & SS_DISABLE) != 0) {
    stack_.resize(kStackBytes);
    const stack_t stack{.ss_sp = stack_.data(), .ss_flags = 0, .ss_size = stack_.size()};
    sigaltstack(&stack, nullptr);
  }
  struct sigaction action {};
  action.sa_handler = end_by_signal;
  action.sa_flags = SA_ONSTACK;
  for (const int signal : kSignals) sigaddset(&action.sa_mask, signal);
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &handlers_before[i]);
}

FatalSignals::~FatalSignals() {
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &handlers_before[i], nullptr);
  if (!stack_.empty()) sigaltstack(&stack_before_, nullptr);
  close(wake_up[1]);  // ends the thread
  thread_.join();
  close(wake_up[0]);
}

}  // namespace lfm2
