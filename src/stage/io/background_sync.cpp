// The syncing thread, and the transfer of its errors.
#include "stage/io/background_sync.h"

#include <utility>

namespace lfm2 {

void BackgroundSync::start() {
  thread_ = std::thread([this] { loop(); });
}

void BackgroundSync::note_change() {
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
  dirty_ = true;
}

void BackgroundSync::loop() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    changed_.wait_for(lock, interval_, [this] { return stopping_; });
    if (stopping_ || !std::exchange(dirty_, false)) continue;
    lock.unlock();
    std::exception_ptr failure;
    try {
      sync_();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (!failure) continue;
    error_ = failure;
    return;
  }
}

void BackgroundSync::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void BackgroundSync::finish() {
  stop();
  if (error_) std::rethrow_exception(error_);
}

}  // namespace lfm2
