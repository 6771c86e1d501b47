// Each test runs in a process of its own, because the effect of a signal stays.
#include "base/stop.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

namespace lfm2::test {
namespace {

[[noreturn]] void say(bool right) { _exit(right ? 0 : 1); }

// As a launcher does: to the process, not to this thread.
void send(int signal) { kill(getpid(), signal); }

bool is_requested_soon() {
  for (int i = 0; i < 5000 && !stop_requested(); ++i) usleep(1000);
  return stop_requested();
}

TEST(StopSignalDeathTest, EachOfThemAsksTheRunToStop) {
  for (const int signal : {SIGUSR1, SIGUSR2, SIGTERM, SIGINT, SIGXCPU, SIGHUP})
    EXPECT_EXIT(
        {
          catch_stop_signals();
          if (stop_requested()) say(false);
          send(signal);
          say(is_requested_soon());
        },
        testing::ExitedWithCode(0), "");
}

TEST(StopSignalDeathTest, NohupKeepsARunGoing) {
  EXPECT_EXIT(
      {
        signal(SIGHUP, SIG_IGN);
        catch_stop_signals();
        send(SIGHUP);
        usleep(100'000);
        say(!stop_requested());
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
        send(SIGUSR1);
        say(is_requested_soon());
      },
      testing::ExitedWithCode(0), "");
}

// As OpenCL drivers do when MPI looks for devices.
TEST(StopSignalDeathTest, AlsoWhereALibraryReplacesTheHandlers) {
  for (const int replaced : {SIGUSR1, SIGTERM, SIGINT})
    EXPECT_EXIT(
        {
          catch_stop_signals();
          signal(replaced, [](int) {});
          send(replaced);
          say(is_requested_soon());
        },
        testing::ExitedWithCode(0), "");
}

TEST(StopSignalDeathTest, AlsoWhereAThreadUnblocksThem) {
  EXPECT_EXIT(
      {
        catch_stop_signals();
        sigset_t none{};
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, nullptr);
        raise(SIGUSR1);
        say(stop_requested());
      },
      testing::ExitedWithCode(0), "");
}

TEST(StopSignalDeathTest, TheSameRequestByTwoWaysIsOneAndALaterOneEndsTheProcess) {
  EXPECT_EXIT(
      {
        catch_stop_signals();
        send(SIGUSR1);
        if (!is_requested_soon()) say(false);
        send(SIGTERM);
        usleep(100'000);
        say(stop_requested());
      },
      testing::ExitedWithCode(0), "");
  EXPECT_EXIT(
      {
        catch_stop_signals();
        send(SIGUSR1);
        if (!is_requested_soon()) say(false);
        usleep(1'100'000);
        send(SIGTERM);
        usleep(5'000'000);
        say(false);
      },
      testing::ExitedWithCode(75), "");
}

// Batch systems and scripts may send theirs again and again; a soft limit of CPU time does so with each second.
TEST(StopSignalDeathTest, WhatBatchSystemsRepeatAsksForNothingMore) {
  EXPECT_EXIT(
      {
        catch_stop_signals();
        send(SIGUSR1);
        if (!is_requested_soon()) say(false);
        usleep(1'100'000);
        for (const int signal : {SIGUSR1, SIGUSR2, SIGXCPU}) send(signal);
        usleep(200'000);
        say(stop_requested());
      },
      testing::ExitedWithCode(0), "");
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
