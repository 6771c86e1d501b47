// Syncs a growing file to disk every few seconds, on a separate thread, so that no writer waits for a slow disk. Used
// by PartialFile.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace lfm2 {

class BackgroundSync {
 public:
  // A crash of the machine loses the results of this interval; the end of the process loses none.
  static constexpr std::chrono::milliseconds kInterval{5000};

  // The thread calls `sync`. It begins with start().
  explicit BackgroundSync(std::function<void()> sync, std::chrono::milliseconds interval = kInterval)
      : sync_(std::move(sync)), interval_(interval) {}
  BackgroundSync(const BackgroundSync&) = delete;
  BackgroundSync& operator=(const BackgroundSync&) = delete;
  ~BackgroundSync() { stop(); }

  void start();
  // Notes that the file needs another sync. Throws the error of an earlier sync.
  void note_change();
  void stop();    // ends the thread, after a sync in progress
  void finish();  // stop(), then throws the error of a sync

 private:
  void loop();

  std::function<void()> sync_;
  std::chrono::milliseconds interval_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false, dirty_ = false;
  std::exception_ptr error_;  // all from mutex_ to here is guarded by it
  std::thread thread_;
};

}  // namespace lfm2
