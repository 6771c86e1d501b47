// Polls without pause at first, then with sleeps that grow with the time waited.
#include "comm/wait.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace lfm2 {

namespace {
// A long wait ends late by a small share of itself, and the threads that it waits for keep their processors meanwhile.
constexpr std::chrono::duration<double> kMinNap{50e-6}, kMaxNap{2e-3};
constexpr double kNapShare = 1.0 / 64;
}  // namespace

double Wait::until(const std::function<bool()>& done, const Place& place) const {
  const auto start = std::chrono::steady_clock::now();
  const Place before = watchdog_.place();
  bool stamped = false;  // set late, because most waits are over at the first look
  while (true) {
    poll_();
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
    if (done()) {
      if (!stamped) return 0;
      watchdog_.enter(before);
      return waited.count();
    }
    if (!stamped) watchdog_.enter(place);
    stamped = true;
    watchdog_.look();
    watchdog_.check();
    if (waited < eager_)
      sched_yield();
    else
      std::this_thread::sleep_for(std::clamp(waited * kNapShare, kMinNap, kMaxNap));
  }
}

}  // namespace lfm2
