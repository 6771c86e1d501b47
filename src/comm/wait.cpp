// Polls without pause at first, then with short sleeps.
#include "comm/wait.h"

#include <sched.h>

#include <thread>

namespace lfm2 {

namespace {
constexpr auto kNap = std::chrono::microseconds(50);
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
      std::this_thread::sleep_for(kNap);
  }
}

}  // namespace lfm2
