// Finds the rank that blocks all others. A pure function of what the watchdog knows about each rank of a host.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "comm/stamps.h"

namespace lfm2 {

// The time limit of reading and writing is this multiple of --timeout, because disks may be slow.
inline constexpr double kDiskFactor = 10;

// A rank as a watchdog sees it. Seconds count only while the watchdog itself runs, so that no rank is blamed after its
// host was suspended.
struct RankView {
  int rank = 0;
  RankActivity activity;
  double idle_seconds = 0;    // seconds without a stamp or a pulse
  double deaf_seconds = 0;    // seconds in which no wait polled: the rank hangs inside a call
  double silent_seconds = 0;  // seconds without a heartbeat: the process does not run
};

struct Stall {
  int rank = 0;
  double seconds = 0;  // seconds without progress; a lower bound
  enum class Kind : uint8_t {
    kStopped,  // the process of the rank does not run
    kHangs,    // the rank does not return from its current work
    kCircle,   // the rank is in a cycle of ranks that wait for each other
    kUnseen,   // the rank is on another host, and a rank here waits for it
    kMeeting   // all ranks of this host are at a meeting that does not end; `rank` is any one of them
  } kind = Kind::kHangs;
};

// Nothing while every rank makes progress or waits for a rank that does.
std::optional<Stall> find_stall(std::span<const RankView> ranks, double timeout_seconds);

}  // namespace lfm2
