// Compares stamps with those of the previous look, and formats them.
#include "comm/watched_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kernels/backend.h"

namespace lfm2 {

std::vector<RankView> WatchedRanks::look(double elapsed) {
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

const RankStamps* WatchedRanks::find(int rank) const {
  const auto found =
      std::find_if(board_.begin(), board_.end(), [&](const RankStamps& stamps) { return stamps.rank() == rank; });
  return found == board_.end() ? nullptr : &*found;
}

std::string WatchedRanks::doing(int rank) const {
  const RankStamps* stamps = find(rank);
  if (stamps == nullptr) return fmt::format("rank {}", rank);
  return fmt::format("rank {} {}", rank, to_text(stamps->entries().back().activity));
}

std::string WatchedRanks::stamps_text() const {
  std::string text;
  const double now = steady_seconds();
  for (size_t i = 0; i < board_.size(); ++i) {
    const RankStamps& stamps = board_[i];
    text += fmt::format(
        "rank {}, process {}: idle for {:.1f} s, last look around {:.1f} s ago, last heartbeat {:.1f} s ago\n",
        stamps.rank(), stamps.pid(), seen_[i].idle, seen_[i].deaf, seen_[i].silent);
    for (const RankStamps::Entry& entry : stamps.entries())
      text += fmt::format("  {:10.3f}  {}\n", now - entry.seconds, to_text(entry.activity));
  }
  return text;
}

}  // namespace lfm2
