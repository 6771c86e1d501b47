// Waiting on the host: every such wait of the program goes through here, so that no hang is without a name.
#pragma once

#include <chrono>
#include <functional>

#include "comm/watchdog.h"

namespace lfm2 {

class Wait {
 public:
  // `poll` is called before each look at the condition: it moves transfers along and throws what went wrong
  // asynchronously.
  // For `eager_seconds` it looks without pause, then politely: ranks may share cores with the threads they wait for.
  Wait(Watchdog& watchdog, std::function<void()> poll, double eager_seconds = kEagerSeconds)
      : watchdog_(watchdog), poll_(std::move(poll)), eager_(eager_seconds) {}
  static constexpr double kEagerSeconds = 300e-6;

  // Returns the seconds waited once `done` is true: 0 where it was at the first look. The rank stands at `place`
  // meanwhile; Error(kLost) where the watchdog finds that nobody gets on any more.
  double until(const std::function<bool()>& done, const Place& place) const;

 private:
  Watchdog& watchdog_;
  std::function<void()> poll_;
  std::chrono::duration<double> eager_;
};

}  // namespace lfm2
