// The watchdog of a rank: writes the rank's stamps, and on a separate thread reads the stamps of all ranks of the host.
// When no rank makes progress for --timeout seconds, it names the stalled rank, writes the last stamps of all ranks to
// a file, and ends the job. It first makes this rank's next wait throw an error. If the rank does not return from a
// call, the watchdog ends the process itself.
#pragma once

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/watched_ranks.h"

namespace lfm2 {

// Ranks that share no memory might all report one cause. Each waits this long per preceding rank before it reports,
// because launchers take seconds to end the other ranks.
constexpr double kHeadStartSeconds = 4;

// The stamps of this rank: on the board of its host, or in its own memory once it has left the board.
class OwnStamps {
 public:
  explicit OwnStamps(RankStamps& on_board) : stamps_(&on_board) {}
  OwnStamps(const OwnStamps&) = delete;
  OwnStamps& operator=(const OwnStamps&) = delete;

  RankStamps* operator->() const { return stamps_; }
  void enter(const RankActivity& activity) {
    activity_ = activity;
    stamps_->enter(activity);
  }
  const RankActivity& activity() const { return activity_; }
  void note(uint64_t device_count) {
    if (device_count != device_count_) stamps_->pulse();
    device_count_ = device_count;
  }
  std::span<RankStamps> leave_board() {  // returns the only stamps that are left
    alone_.start(stamps_->rank());
    stamps_ = &alone_;
    return {stamps_, 1};
  }

 private:
  RankStamps* stamps_;
  RankStamps alone_;
  RankActivity activity_;  // with its label
  uint64_t device_count_ = 0;
};

class Watchdog {
 public:
  struct Settings {
    double timeout_seconds = 0;         // 0: no rank ever counts as stalled
    std::filesystem::path stamps_file;  // written when a rank stalls
  };
  // How a job ends that cannot continue. The functions may be called on any thread.
  struct Ending {
    std::function<bool()> claim;  // see Watchdog::claim()
    std::function<void(const std::string& text)> say;
    std::function<void(ExitCode code)> end;  // ends all ranks at once
  };

  // `board` holds the stamps of this host's ranks, all of them started; `self` is the index of this rank.
  Watchdog(std::span<RankStamps> board, size_t self, Settings settings, Ending ending);
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  ~Watchdog();

  int rank() const { return self_->rank(); }

  // Called by the rank's main thread.
  void enter(const RankActivity& activity) { self_.enter(activity); }
  RankActivity activity() const { return self_.activity(); }
  // `device_count` is a counter that changes while a device works. A change is progress without a stamp.
  void note(uint64_t device_count) { self_.note(device_count); }
  void pulse() { self_->pulse(); }  // may be called by any thread
  void look() { self_->look(); }

  void check() const;  // Error(kLost) once a stall was found
  bool spoke() const { return spoke_; }
  bool claim() const { return ending_.claim(); }  // true for the first rank of the host that reports
  void end_all(ExitCode code) const { ending_.end(code); }
  // Called when the rank ends. From here on the watchdog watches only this rank, because the shared memory of `board`
  // is about to be freed. claim() can no longer decide who reports: this rank reports after the `ranks_before` ranks of
  // the host that precede it.
  void leave_board(int ranks_before);

 private:
  void loop();
  void end_job(const Stall& stall, const std::vector<RankView>& views);
  std::string describe(const Stall& stall, const std::vector<RankView>& views) const;

  Settings settings_;
  Ending ending_;
  OwnStamps self_;
  std::atomic<bool> stalled_ = false, spoke_ = false;
  std::string stall_text_;  // written before stalled_ is set

  std::mutex mutex_;
  std::condition_variable stopping_changed_;
  bool stopping_ = false;
  WatchedRanks ranks_;  // all from mutex_ to here is guarded by it
  std::thread writer_;  // writes the file of stamps
  std::thread thread_;  // last, because the thread uses all of the above
};

}  // namespace lfm2
