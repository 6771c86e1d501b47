// A signal handler can reach nothing but a variable of static storage: the only one of the program.
#include "weights-tools/model/interrupt.h"

#include <csignal>
#include <initializer_list>

#include "kernels/error.h"

namespace lfm2 {

namespace {

volatile std::sig_atomic_t caught_signal = 0;

void remember(int signal) { caught_signal = signal; }

}  // namespace

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = remember;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(signal, &action, nullptr);
}

void throw_if_interrupted() {
  if (caught_signal != 0)
    throw Error(ExitCode::kStopped,
                fmt::format("stopped by signal {}, nothing was written", static_cast<int>(caught_signal)));
}

}  // namespace lfm2
