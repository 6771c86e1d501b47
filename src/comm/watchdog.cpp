// The watchdog's thread reads a few words of each rank ten times a second. It makes texts and files only after it has
// found a stall.
#include "comm/watchdog.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "kernels/backend.h"

namespace lfm2 {

namespace {

constexpr auto kTick = std::chrono::milliseconds(100);
// A longer time between two looks means that this process itself was suspended. That time does not count as idle.
constexpr double kMaxTickSeconds = 0.3;
// Time for the main thread to remove unfinished files and to end the job itself.
constexpr auto kGrace = std::chrono::seconds(2);

// Errors are ignored: the job is about to end for a more important cause.
void write_text(const std::filesystem::path& path, const std::string& text) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (fd < 0) return;
  (void)!write(fd, text.data(), text.size());
  close(fd);
}

}  // namespace

Watchdog::Watchdog(std::span<RankStamps> board, size_t self, Settings settings, Ending ending)
    : settings_(std::move(settings)), ending_(std::move(ending)), self_(board[self]), ranks_(board) {
  if (settings_.timeout_seconds > 0) thread_ = std::thread([this] { loop(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stopping_changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (writer_.joinable()) writer_.join();
}

void Watchdog::check() const {
  if (stalled_.load(std::memory_order_acquire)) throw Error(ExitCode::kLost, stall_text_);
}

void Watchdog::leave_board(int ranks_before) {
  const std::lock_guard lock(mutex_);
  ranks_ = WatchedRanks(self_.leave_board());
  enter({.phase = Phase::kEnd, .limit_seconds = settings_.timeout_seconds + kHeadStartSeconds * ranks_before});
}

void Watchdog::loop() {
  std::unique_lock lock(mutex_);
  double last = steady_seconds();
  while (!stopping_changed_.wait_for(lock, kTick, [this] { return stopping_; })) {
    self_->beat();
    const double now = steady_seconds();
    const std::vector<RankView> views = ranks_.look(std::min(now - std::exchange(last, now), kMaxTickSeconds));
    const std::optional<Stall> stall = find_stall(views, settings_.timeout_seconds);
    if (!stall) continue;
    end_job(*stall, views);
    if (!stopping_changed_.wait_for(lock, kGrace, [this] { return stopping_; })) ending_.end(ExitCode::kLost);
    return;
  }
}

void Watchdog::end_job(const Stall& stall, const std::vector<RankView>& views) {
  stall_text_ = describe(stall, views);
  if (ending_.claim()) {
    ending_.say(stall_text_);
    spoke_ = true;
    // The file system may be what hangs, so the file is written on a separate thread.
    std::string text = fmt::format("# seconds before the end, by rank: what it began to do; --timeout {:g}\n",
                                   settings_.timeout_seconds) +
                       ranks_.stamps_text();
    writer_ = std::thread([path = settings_.stamps_file, text = std::move(text)] { write_text(path, text); });
  }
  stalled_.store(true, std::memory_order_release);
}

std::string Watchdog::describe(const Stall& stall, const std::vector<RankView>& views) const {
  std::string text =
      fmt::format("no progress for {:.1f} s (--timeout {:g}): ", stall.seconds, settings_.timeout_seconds);
  switch (stall.kind) {
    case Stall::Kind::kStopped:
      text += fmt::format("{}, its process {} is stopped", ranks_.doing(stall.rank), ranks_.find(stall.rank)->pid());
      break;
    case Stall::Kind::kHangs:
      text += fmt::format("{} and does not come out of it", ranks_.doing(stall.rank));
      break;
    case Stall::Kind::kCircle:
    case Stall::Kind::kMeeting:
      text += ranks_.doing(stall.rank);
      break;
    case Stall::Kind::kUnseen:
      text += fmt::format("rank {}, on another host, is waited for", stall.rank);
      break;
  }
  for (const RankView& view : views)
    if (view.rank != stall.rank && view.activity.peer == stall.rank) {
      text += "; " + ranks_.doing(view.rank);
      break;
    }
  return text + fmt::format("; last stamps of the ranks here: {}", settings_.stamps_file.string());
}

}  // namespace lfm2
