// Makes a file durable every few seconds while it is written, on a separate thread, because the disk may be slow and
// nobody should wait for it. Used by PartialFile.
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
  // A crash of the machine costs the results of the last few seconds; the end of the process costs none.
  static constexpr std::chrono::milliseconds kInterval{5000};

  // `sync` is called on the thread, which begins with start().
  explicit BackgroundSync(std::function<void()> sync, std::chrono::milliseconds interval = kInterval)
      : sync_(std::move(sync)), interval_(interval) {}
  BackgroundSync(const BackgroundSync&) = delete;
  BackgroundSync& operator=(const BackgroundSync&) = delete;
  ~BackgroundSync() { stop(); }

  void start();
  // The file has changed, so it is synced again. Throws the error of an earlier sync.
  void note_change();
  void stop();    // ends the thread, after the sync that it may be in
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
