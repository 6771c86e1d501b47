// Each test runs in a process of its own, because the effect of a signal stays.
#include "stage/support/stop.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

namespace lfm2::test {
namespace {

[[noreturn]] void say(bool right) { _exit(right ? 0 : 1); }

TEST(StopSignalDeathTest, EachOfThemAsksTheRunToStop) {
  for (const int signal : {SIGUSR1, SIGTERM, SIGINT})
    EXPECT_EXIT(
        {
          catch_stop_signals();
          if (stop_requested()) say(false);
          raise(signal);
          say(stop_requested());
        },
        testing::ExitedWithCode(0), "");
}

TEST(StopSignalDeathTest, AlsoWhereTheyWereBlocked) {
  EXPECT_EXIT(
      {
        sigset_t all{};
        sigfillset(&all);
        sigprocmask(SIG_SETMASK, &all, nullptr);
        catch_stop_signals();
        raise(SIGUSR1);
        say(stop_requested());
      },
      testing::ExitedWithCode(0), "");
}

TEST(StopSignalDeathTest, TheSameRequestByTwoWaysIsOneAndALaterOneEndsTheProcess) {
  EXPECT_EXIT(
      {
        catch_stop_signals();
        raise(SIGUSR1);
        raise(SIGTERM);
        say(stop_requested());
      },
      testing::ExitedWithCode(0), "");
  EXPECT_EXIT(
      {
        catch_stop_signals();
        raise(SIGUSR1);
        usleep(1'100'000);
        raise(SIGUSR1);
        say(false);
      },
      testing::ExitedWithCode(75), "");
}

TEST(InterruptDeathTest, ASignalIsRememberedAndTheSameOneAgainEndsTheProcess) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    EXPECT_EXIT(
        {
          catch_interrupts();
          if (stop_requested()) say(false);
          raise(signal);
          say(stop_signal() == signal);
        },
        testing::ExitedWithCode(0), "");
    EXPECT_EXIT(
        {
          catch_interrupts();
          raise(signal);
          raise(signal);
          say(false);
        },
        testing::KilledBySignal(signal), "");
  }
}

TEST(InterruptDeathTest, AnotherSignalDoesNotEndTheProcess) {
  EXPECT_EXIT(
      {
        catch_interrupts();
        raise(SIGINT);
        usleep(1'100'000);
        raise(SIGTERM);
        say(stop_signal() == SIGTERM);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace lfm2::test
