// Polls without pause at first, then with sleeps that grow with the time without progress.
#include "comm/wait.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace lfm2 {

namespace {
// The shortest sleep. It leaves the processors to the threads for which this waits.
constexpr std::chrono::duration<double> kShortestNap{50e-6};
}  // namespace

double Wait::until(const std::function<bool()>& done, const RankActivity& activity) const {
  using Seconds = std::chrono::duration<double>;
  const auto start = std::chrono::steady_clock::now();
  auto moved = start;
  const RankActivity before = watchdog_.activity();
  bool stamped = false;  // set late, because most waits end at the first poll
  while (true) {
    const uint64_t seen = work_done_ != nullptr ? work_done_->count() : 0;
    const bool moves = poll_();
    const auto now = std::chrono::steady_clock::now();
    if (moves) moved = now;
    if (done()) {
      if (!stamped) return 0;
      watchdog_.enter(before);
      return Seconds(now - start).count();
    }
    if (!stamped) watchdog_.enter(activity);
    stamped = true;
    watchdog_.look();
    watchdog_.check();
    const Seconds still = now - moved,
                  nap = std::clamp(still * pace_.nap_share, kShortestNap, Seconds(pace_.longest_nap));
    if (still.count() < pace_.eager_seconds)
      sched_yield();
    else if (work_done_ != nullptr)
      work_done_->wait(seen, nap);
    else
      std::this_thread::sleep_for(nap);
  }
}

void wait_idle(Watchdog& watchdog, const std::function<bool()>& done) {
  constexpr auto kNap = std::chrono::microseconds(200);
  watchdog.enter({.phase = Phase::kIdle});
  while (!done()) {
    watchdog.look();
    watchdog.pulse();
    watchdog.check();
    std::this_thread::sleep_for(kNap);
  }
}

}  // namespace lfm2
