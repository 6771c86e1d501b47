// A fault inside a call to MPI ends the job with one line; any other stays what it is.
#include "comm/fatal_signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
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

// Calls itself until the stack is full.
int fill_stack(const volatile char* above) {
  volatile char frame[4096];
  frame[0] = above[0];
  return above[0] != 0 ? 0 : fill_stack(frame) + frame[0];
}

TEST(FatalSignalsDeathTest, AFullStackIsNamed) {
  EXPECT_EXIT(
      {
        const FatalSignals signals(
            "one line", [] { return true; }, [] { _exit(71); });
        const InsideMpi inside;
        const volatile char zero = 0;
        fill_stack(&zero);
      },
      testing::ExitedWithCode(71), "^one line\n$");
}

// While the job is being ended, neither a fault of another thread nor a signal that has a handler ends it sooner.
TEST(FatalSignalsDeathTest, ASecondFaultElsewhereLeavesTimeToEnd) {
  for (const bool fault : {true, false}) {
    EXPECT_EXIT(
        {
          signal(SIGUSR1, [](int) {});
          const pthread_t failing = pthread_self();
          const FatalSignals signals(
              "one line", [] { return true; },
              [&] {
                if (!fault) pthread_kill(failing, SIGUSR1);
                std::thread other;
                if (fault) other = std::thread([] { raise(SIGBUS); });
                std::this_thread::sleep_for(std::chrono::milliseconds(200));
                _exit(71);
              });
          const InsideMpi inside;
          raise(SIGSEGV);
        },
        testing::ExitedWithCode(71), "^one line\n$")
        << fault;
  }
}

// A fault in the handler itself cannot be waited for.
TEST(FatalSignalsDeathTest, ASecondFaultInTheHandlerEndsTheProcess) {
  const auto fail_twice = [](const std::function<void()>& second) {
    const FatalSignals signals(
        "one line",
        [&] {
          second();
          return true;
        },
        [] {});
    const InsideMpi inside;
    raise(SIGSEGV);
  };
  int* volatile nowhere = reinterpret_cast<int*>(64);
  EXPECT_EXIT(fail_twice([&] { *nowhere = 1; }), testing::KilledBySignal(SIGSEGV), "^$");
  EXPECT_EXIT(fail_twice([] { std::abort(); }), testing::ExitedWithCode(70), "^$");
}

TEST(FatalSignalsDeathTest, ElsewhereASignalIsWhatItWas) {
  for (const int signal : {SIGSEGV, SIGBUS, SIGABRT})
    for (const Where where : {Where::kInsideBefore, Where::kOnAnotherThread})
      EXPECT_EXIT(fail(signal, where), testing::KilledBySignal(signal), "^$") << signal;
}

}  // namespace
}  // namespace lfm2::test
