// Wakes a thread that waits for a device's work to end, on devices that can signal it. The CPU's streams do, because a
// wait that polls would take time from the computing threads.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace lfm2 {

class WorkDoneSignal {
 public:
  uint64_t count() const {
    const std::lock_guard lock(mutex_);
    return count_;
  }
  void note() {
    const std::lock_guard lock(mutex_);
    ++count_;
    changed_.notify_all();
  }
  // Returns when note() was called since count() returned `seen`, or after `most`.
  void wait(uint64_t seen, std::chrono::duration<double> most) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, most, [&] { return count_ != seen; });
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t count_ = 0;
};

}  // namespace lfm2
