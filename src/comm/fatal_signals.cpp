// The handler calls nothing that may wait for a lock which the interrupted code holds.
#include "comm/fatal_signals.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "kernels/error.h"

namespace lfm2 {

namespace {

constexpr std::array kSignals{SIGSEGV, SIGBUS, SIGABRT};

std::string said;
std::function<bool()> may_say;
std::array<struct sigaction, kSignals.size()> before;

void end(int) {
  if (may_say() && write(STDERR_FILENO, said.data(), said.size()) < 0) _exit(static_cast<int>(ExitCode::kIo));
  _exit(static_cast<int>(ExitCode::kSoftware));
}

}  // namespace

FatalSignals::FatalSignals(const std::string& line, std::function<bool()> claim) {
  said = line + "\n";
  may_say = std::move(claim);
  struct sigaction action {};
  action.sa_handler = end;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &before[i]);
}

FatalSignals::~FatalSignals() {
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before[i], nullptr);
}

}  // namespace lfm2
