// Follows the chain of waiting ranks to a rank that waits for no other.
#include "comm/stall.h"

#include <algorithm>

namespace lfm2 {

namespace {

// A rank of another host may itself wait for a hanging rank. The watchdog of that host has more facts, and gets time to
// report first.
constexpr double kUnseenFactor = 2;

double limit_of(const RankView& view, double timeout) {
  if (view.activity.limit_seconds > 0) return view.activity.limit_seconds;
  const Phase phase = view.activity.phase;
  return phase == Phase::kRead || phase == Phase::kLoad || phase == Phase::kWrite ? kDiskFactor * timeout : timeout;
}

// The last heartbeat may be a little younger than the last progress, so silence counts from this share of the limit on.
constexpr double kSilentShare = 0.8;

bool is_stopped(const RankView& view, double timeout) {
  return view.silent_seconds >= kSilentShare * timeout && view.idle_seconds >= timeout;
}

const RankView* view_of(std::span<const RankView> ranks, int rank) {
  const auto found = std::find_if(ranks.begin(), ranks.end(), [&](const RankView& view) { return view.rank == rank; });
  return found == ranks.end() ? nullptr : &*found;
}

// The rank for which a waiting rank waits. At a meeting: the absent rank that was idle for longest.
const RankView* awaited(std::span<const RankView> ranks, const RankView& view) {
  if (view.activity.phase != Phase::kMeet) return view_of(ranks, view.activity.peer);
  const RankView* missing = nullptr;
  for (const RankView& other : ranks)
    if (other.activity.phase != Phase::kMeet && (missing == nullptr || other.idle_seconds > missing->idle_seconds))
      missing = &other;
  return missing;
}

std::optional<Stall> follow(std::span<const RankView> ranks, const RankView& first, double timeout) {
  const RankView* at = &first;
  for (size_t steps = 0; steps <= ranks.size(); ++steps) {
    if (at->idle_seconds < limit_of(*at, timeout)) return {};
    if (!at->activity.waits() || at->deaf_seconds >= limit_of(*at, timeout))
      return Stall{at->rank, at->idle_seconds, Stall::Kind::kHangs};
    const RankView* next = awaited(ranks, *at);
    if (next == nullptr) {  // the chain leaves this host
      if (at->idle_seconds < kUnseenFactor * limit_of(*at, timeout)) return {};
      const bool meets = at->activity.phase == Phase::kMeet;
      return Stall{meets ? at->rank : at->activity.peer, at->idle_seconds,
                   meets ? Stall::Kind::kMeeting : Stall::Kind::kUnseen};
    }
    at = next;
  }
  return Stall{at->rank, at->idle_seconds, Stall::Kind::kCircle};
}

}  // namespace

std::optional<Stall> find_stall(std::span<const RankView> ranks, double timeout_seconds) {
  std::optional<Stall> worst;
  const auto take = [&](const std::optional<Stall>& stall) {
    if (stall && (!worst || stall->seconds > worst->seconds)) worst = stall;
  };
  // A stopped process blocks the others, whatever it was waiting for.
  for (const RankView& view : ranks)
    if (is_stopped(view, timeout_seconds)) take(Stall{view.rank, view.idle_seconds, Stall::Kind::kStopped});
  if (worst) return worst;
  for (const RankView& view : ranks) take(follow(ranks, view, timeout_seconds));
  return worst;
}

}  // namespace lfm2
