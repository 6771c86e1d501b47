// The watchdog's thread reads a few words of each rank ten times a second. Texts and files are made only once a stall
// is found.
#include "comm/watchdog.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "kernels/backend.h"
#include "kernels/error.h"

namespace lfm2 {

namespace {

constexpr auto kTick = std::chrono::milliseconds(100);
// A longer time between two looks means that this process itself did not run. That time makes no rank idle.
constexpr double kLongestTickSeconds = 0.3;
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
    : settings_(std::move(settings)),
      ending_(std::move(ending)),
      self_(&board[self]),
      board_(board),
      seen_(board.size()) {
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

void Watchdog::leave_board() {
  const std::lock_guard lock(mutex_);
  alone_.start(self_->rank());
  self_ = &alone_;
  board_ = {self_, 1};
  seen_.assign(1, {});
}

void Watchdog::loop() {
  std::unique_lock lock(mutex_);
  double last = steady_seconds();
  while (!stopping_changed_.wait_for(lock, kTick, [this] { return stopping_; })) {
    self_->beat();
    const double now = steady_seconds();
    const std::vector<RankView> views = look(std::min(now - std::exchange(last, now), kLongestTickSeconds));
    const std::optional<Stall> stall = find_stall(views, settings_.timeout_seconds);
    if (!stall) continue;
    end_job(*stall, views);
    if (!stopping_changed_.wait_for(lock, kGrace, [this] { return stopping_; })) ending_.end();
    return;
  }
}

std::vector<RankView> Watchdog::look(double elapsed) {
  std::vector<RankView> views;
  for (size_t i = 0; i < board_.size(); ++i) {
    Seen& seen = seen_[i];
    const auto since_change = [&](uint64_t now, uint64_t& before, double& seconds) {
      seconds = now == std::exchange(before, now) ? seconds + elapsed : 0;
    };
    since_change(board_[i].progress(), seen.progress, seen.idle);
    since_change(board_[i].looks(), seen.looks, seen.deaf);
    since_change(board_[i].beats(), seen.beats, seen.silent);
    views.push_back({board_[i].rank(), board_[i].newest(), seen.idle, seen.deaf, seen.silent});
  }
  return views;
}

void Watchdog::end_job(const Stall& stall, const std::vector<RankView>& views) {
  stall_text_ = describe(stall, views);
  if (ending_.claim()) {
    ending_.say(stall_text_);
    spoke_ = true;
    // The file system may be what hangs, so the file is written on a thread of its own.
    writer_ = std::thread([path = settings_.stamps_file, text = stamps_text()] { write_text(path, text); });
  }
  stalled_.store(true, std::memory_order_release);
}

std::string Watchdog::describe(const Stall& stall, const std::vector<RankView>& views) const {
  const auto doing = [&](int rank) -> std::string {
    for (const RankStamps& stamps : board_)
      if (stamps.rank() == rank) return fmt::format("rank {} {}", rank, to_text(stamps.entries().back().place));
    return fmt::format("rank {}", rank);
  };
  std::string text =
      fmt::format("no progress for {:.1f} s (--timeout {:g}): ", stall.seconds, settings_.timeout_seconds);
  switch (stall.kind) {
    case Stall::Kind::kStopped:
      for (const RankStamps& stamps : board_)
        if (stamps.rank() == stall.rank)
          text += fmt::format("{}, its process {} is stopped", doing(stall.rank), stamps.pid());
      break;
    case Stall::Kind::kHangs:
      text += fmt::format("{} and does not come out of it", doing(stall.rank));
      break;
    case Stall::Kind::kCircle:
    case Stall::Kind::kMeeting:
      text += doing(stall.rank);
      break;
    case Stall::Kind::kUnseen:
      text += fmt::format("rank {}, on another host, is waited for", stall.rank);
      break;
  }
  for (const RankView& view : views)
    if (view.rank != stall.rank && view.place.peer == stall.rank) {
      text += "; " + doing(view.rank);
      break;
    }
  return text + fmt::format("; last stamps of the ranks here: {}", settings_.stamps_file.string());
}

// One line for each stamp, the newest of each rank last.
std::string Watchdog::stamps_text() const {
  std::string text = fmt::format("# seconds before the end, by rank: what it began to do; --timeout {:g}\n",
                                 settings_.timeout_seconds);
  const double now = steady_seconds();
  for (size_t i = 0; i < board_.size(); ++i) {
    const RankStamps& stamps = board_[i];
    text += fmt::format(
        "rank {}, process {}: idle for {:.1f} s, last look around {:.1f} s ago, last heartbeat {:.1f} s ago\n",
        stamps.rank(), stamps.pid(), seen_[i].idle, seen_[i].deaf, seen_[i].silent);
    for (const RankStamps::Entry& entry : stamps.entries())
      text += fmt::format("  {:10.3f}  {}\n", now - entry.seconds, to_text(entry.place));
  }
  return text;
}

}  // namespace lfm2
