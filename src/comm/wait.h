// Waiting on the host. Every wait of the program goes through here, so that a hang always names whom it waits for.
#pragma once

#include <chrono>
#include <functional>

#include "comm/watchdog.h"
#include "kernels/work_done_signal.h"

namespace lfm2 {

class Wait {
 public:
  // How a wait polls. For `eager_seconds` after its start, and after each transfer that advanced, it polls without
  // pause. Then it sleeps between polls, because ranks may share cores with the threads that they wait for. A sleep
  // lasts `nap_share` of the time since something advanced, at most `longest_nap` seconds. So a wait is late by at most
  // that share of its duration.
  struct Pace {
    double eager_seconds = 300e-6;
    double nap_share = 1.0 / 64;
    double longest_nap = 2e-3;
  };

  // `poll` is called before each test of the condition. It advances transfers, returns the result of
  // Channel::progress(), and throws asynchronous errors. `work_done` ends a sleep early.
  Wait(Watchdog& watchdog, std::function<bool()> poll, Pace pace, WorkDoneSignal* work_done = nullptr)
      : watchdog_(watchdog), poll_(std::move(poll)), pace_(pace), work_done_(work_done) {}
  Wait(Watchdog& watchdog, std::function<bool()> poll) : Wait(watchdog, std::move(poll), Pace()) {}

  // Returns once `done` is true, with the seconds waited; 0 if it was true at once. Meanwhile the rank's stamp is
  // `activity`. Error(kLost) if the watchdog finds a stall.
  double until(const std::function<bool()>& done, const RankActivity& activity) const;

 private:
  Watchdog& watchdog_;
  std::function<bool()> poll_;
  Pace pace_;
  WorkDoneSignal* work_done_;
};

// Returns once `done` is true, which polls. Without a limit: for waits in which a hang of the others is noticed
// elsewhere. The rank counts as idle meanwhile.
void wait_idle(Watchdog& watchdog, const std::function<bool()>& done);

}  // namespace lfm2
