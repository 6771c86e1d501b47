// Polls eagerly at first, then politely.
#include "comm/wait.h"

#include <sched.h>

#include <thread>

#include "kernels/error.h"

namespace lfm2 {

namespace {
constexpr auto kNap = std::chrono::microseconds(50);
}  // namespace

double Wait::until(const std::function<bool()>& done, const std::function<std::string()>& what) const {
  const auto start = std::chrono::steady_clock::now();
  while (true) {
    poll_();
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
    if (done()) return waited.count();
    if (timeout_seconds_ > 0 && waited.count() > timeout_seconds_)
      throw Error(ExitCode::kLost, fmt::format("no progress for {:g} s (--timeout): {}", timeout_seconds_, what()));
    if (waited < eager_)
      sched_yield();
    else
      std::this_thread::sleep_for(kNap);
  }
}

}  // namespace lfm2
