// The handler calls nothing that may wait for a lock which the interrupted code holds. The thread that ends the job
// may: it is the one that can tell the launcher the exit code.
#include "comm/fatal_signals.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <utility>

#include "kernels/error.h"

namespace lfm2 {

namespace {

constexpr std::array kSignals{SIGSEGV, SIGBUS, SIGABRT};
constexpr unsigned kMaxEnding = 5;  // seconds

std::string fatal_line;
std::function<bool()> may_say;
std::array<struct sigaction, kSignals.size()> handlers_before;
std::array<int, 2> wake_up{-1, -1};  // a pipe: the handler writes what the thread reads
std::atomic<bool> ending = false;

void pass_on(int signal) {
  for (size_t i = 0; i < kSignals.size(); ++i)
    if (kSignals[i] == signal) sigaction(signal, &handlers_before[i], nullptr);
  raise(signal);  // comes once this handler has returned
}

void end_by_signal(int signal) {
  if (ending.exchange(true)) _exit(static_cast<int>(ExitCode::kSoftware));  // the way to the end fails, too
  if (!InsideMpi::now()) {
    ending = false;
    pass_on(signal);
    return;
  }
  const bool says = may_say();
  if (says && write(STDERR_FILENO, fatal_line.data(), fatal_line.size()) < 0) _exit(static_cast<int>(ExitCode::kIo));
  if (const char word = 1; write(wake_up[1], &word, 1) == 1) sleep(kMaxEnding);
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
  struct sigaction action {};
  action.sa_handler = end_by_signal;
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &handlers_before[i]);
}

FatalSignals::~FatalSignals() {
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &handlers_before[i], nullptr);
  close(wake_up[1]);  // ends the thread
  thread_.join();
  close(wake_up[0]);
}

}  // namespace lfm2
