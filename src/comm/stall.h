// Who holds all others up: a pure function of what is known of each rank of a host.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "comm/stamps.h"

namespace lfm2 {

// Reading and writing may stand still that much longer than anything else: disks do.
inline constexpr double kDiskFactor = 10;

// A rank as a watchdog sees it. Seconds count while the watchdog itself runs, so that a host that slept blames nobody.
struct RankView {
  int rank = 0;
  Place place;
  double idle_seconds = 0;    // without a stamp or a pulse
  double deaf_seconds = 0;    // without a look around: a wait that long hangs in a call
  double silent_seconds = 0;  // without a heartbeat: the process does not run
};

struct Stall {
  int rank = 0;
  double seconds = 0;  // without progress, at least
  enum class Kind : uint8_t {
    kStopped,  // its process does not run
    kHangs,    // it does not come out of what it does
    kCircle,   // it waits for a rank that waits for it
    kUnseen,   // it is on another host, and a rank here waits for it
    kMeeting   // all ranks of this host are at a meeting that does not end; `rank` is one of them
  } kind = Kind::kHangs;
};

// Nothing while every rank makes progress or waits for one that does.
std::optional<Stall> find_stall(std::span<const RankView> ranks, double timeout_seconds);

}  // namespace lfm2
