// Waiting on the host. Every wait of the program goes through here, so that a hang always names whom it waits for.
#pragma once

#include <chrono>
#include <functional>

#include "comm/watchdog.h"
#include "kernels/work_done_signal.h"

namespace lfm2 {

class Wait {
 public:
  // For `eager_seconds` from the start, and from each time that something moved, a wait looks without pause, then with
  // sleeps between, because ranks may share cores with the threads that they wait for. A sleep takes `nap_share` of the
  // time in which nothing has moved, and no longer than `longest_nap` seconds, so that a wait ends late by at most this
  // share of itself.
  struct Pace {
    double eager_seconds = 300e-6;
    double nap_share = 1.0 / 64;
    double longest_nap = 2e-3;
  };

  // `poll` is called before each look at the condition; it moves transfers on, returns what Channel::progress() does,
  // and throws asynchronous errors. `work_done` ends a sleep early.
  Wait(Watchdog& watchdog, std::function<bool()> poll, Pace pace, WorkDoneSignal* work_done = nullptr)
      : watchdog_(watchdog), poll_(std::move(poll)), pace_(pace), work_done_(work_done) {}
  Wait(Watchdog& watchdog, std::function<bool()> poll) : Wait(watchdog, std::move(poll), Pace()) {}

  // Returns the seconds waited once `done` is true; 0 where it was true at the first look. Meanwhile the rank's stamp
  // is `activity`. Error(kLost) where the watchdog finds a stall.
  double until(const std::function<bool()>& done, const RankActivity& activity) const;

 private:
  Watchdog& watchdog_;
  std::function<bool()> poll_;
  Pace pace_;
  WorkDoneSignal* work_done_;
};

}  // namespace lfm2
