// A rank's watchdog: keeps its stamps, and on a thread of its own looks at those of all ranks of the host. Where nobody
// gets on for --timeout seconds it says who stalled, writes everybody's last stamps to a file, and ends the job: first
// by an error in this rank's next wait, then, where the rank does not come out of a call, by itself.
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

#include "comm/stall.h"
#include "comm/stamps.h"

namespace lfm2 {

class Watchdog {
 public:
  struct Settings {
    double timeout_seconds = 0;         // 0: nobody is ever stalled
    std::filesystem::path stamps_file;  // made when a rank stalls
  };
  // How the job ends; called on the watchdog's thread.
  struct Ending {
    std::function<bool()> claim;  // true for the first rank of the host that has something to say
    std::function<void(const std::string& text)> say;
    std::function<void()> end;  // all ranks, at once
  };

  // `board`: the stamps of this host's ranks, all started; this rank's is number `self`.
  Watchdog(std::span<RankStamps> board, size_t self, Settings settings, Ending ending);
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  ~Watchdog();

  int rank() const { return self_->rank(); }

  // By the rank's main thread.
  void enter(const Place& place) {
    place_ = place;
    self_->enter(place);
  }
  Place place() const { return place_; }
  // `activity` changes while a device works: progress that makes no stamps.
  void note(uint64_t activity) {
    if (activity != activity_) self_->pulse();
    activity_ = activity;
  }
  void pulse() { self_->pulse(); }  // by any thread
  void look() { self_->look(); }

  void check() const;  // Error(kLost) once a stall was found
  bool spoke() const { return spoke_; }
  // From here on this rank is watched alone: the board is about to go.
  void leave_board();

 private:
  // What is remembered of a rank between two looks.
  struct Seen {
    uint64_t progress = 0, looks = 0, beats = 0;
    double idle = 0, deaf = 0, silent = 0;
  };

  void loop();
  std::vector<RankView> look(double elapsed);
  void end_job(const Stall& stall, const std::vector<RankView>& views);
  std::string describe(const Stall& stall, const std::vector<RankView>& views) const;
  std::string stamps_text() const;

  Settings settings_;
  Ending ending_;
  RankStamps* self_;
  Place place_;
  uint64_t activity_ = 0;
  std::atomic<bool> stalled_ = false, spoke_ = false;
  std::string stall_text_;  // written before stalled_ is set

  std::mutex mutex_;
  std::condition_variable stopping_changed_;
  bool stopping_ = false;
  std::span<RankStamps> board_;
  std::vector<Seen> seen_;  // all above from mutex_ on are guarded by it
  RankStamps alone_;
  std::thread writer_;  // of the stamps' file
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace lfm2
