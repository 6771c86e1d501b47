// A fault inside a call to MPI ends the job with one line; any other stays what it is.
#include "comm/fatal_signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

namespace lfm2::test {
namespace {

enum class Where { kInside, kInsideBefore, kOnAnotherThread };

// What a rank does: `claims` is whether it is the first to report, `ends` whether the thread can end the job.
void fail(int signal, Where where, bool claims = true, bool ends = true) {
  const FatalSignals signals(
      "one line", [&] { return claims; },
      [&] {
        if (ends) _exit(71);
        raise(SIGSEGV);
      });
  if (where == Where::kInside) {
    const InsideMpi inside;
    signal == SIGABRT ? std::abort() : static_cast<void>(raise(signal));
  }
  { const InsideMpi inside; }
  if (where == Where::kInsideBefore) raise(signal);
  const InsideMpi inside;
  std::thread([&] { raise(signal); }).join();
}

TEST(FatalSignalsDeathTest, InsideMpiTheJobEnds) {
  for (const int signal : {SIGSEGV, SIGBUS, SIGABRT})
    EXPECT_EXIT(fail(signal, Where::kInside), testing::ExitedWithCode(71), "^one line\n$") << signal;
  EXPECT_EXIT(fail(SIGSEGV, Where::kInside, false), testing::ExitedWithCode(71), "^$");
  EXPECT_EXIT(fail(SIGSEGV, Where::kInside, true, false), testing::ExitedWithCode(70), "^one line\n$");
}

TEST(FatalSignalsDeathTest, ElsewhereASignalIsWhatItWas) {
  for (const int signal : {SIGSEGV, SIGBUS, SIGABRT})
    for (const Where where : {Where::kInsideBefore, Where::kOnAnotherThread})
      EXPECT_EXIT(fail(signal, where), testing::KilledBySignal(signal), "^$") << signal;
}

}  // namespace
}  // namespace lfm2::test
