// Waiting on the host. Every wait of the program goes through here, so that a hang always names whom it waits for.
#pragma once

#include <chrono>
#include <functional>

#include "comm/watchdog.h"
#include "kernels/completions.h"

namespace lfm2 {

class Wait {
 public:
  // `poll` is called before each look at the condition; it moves transfers on, returns what Channel::progress() does,
  // and throws asynchronous errors. For `eager_seconds` from the start, and from each time that something moved, the
  // wait looks without pause, then with sleeps between, because ranks may share cores with the threads that they wait
  // for. `completions` end such a sleep early.
  Wait(Watchdog& watchdog, std::function<bool()> poll, double eager_seconds = kEagerSeconds,
       Completions* completions = nullptr)
      : watchdog_(watchdog), poll_(std::move(poll)), eager_(eager_seconds), completions_(completions) {}
  static constexpr double kEagerSeconds = 300e-6;

  // Returns the seconds waited once `done` is true; 0 where it was true at the first look. Meanwhile the rank's stamp
  // is `place`. Error(kLost) where the watchdog finds a stall.
  double until(const std::function<bool()>& done, const Place& place) const;

 private:
  Watchdog& watchdog_;
  std::function<bool()> poll_;
  std::chrono::duration<double> eager_;
  Completions* completions_;
};

}  // namespace lfm2
