// The ranks of a host as a watchdog sees them: their stamps, and how long these have not changed. Watchdog's lock
// guards it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "comm/stall.h"
#include "comm/stamps.h"

namespace lfm2 {

class WatchedRanks {
 public:
  // `board` holds the stamps of the ranks, all of them started.
  explicit WatchedRanks(std::span<RankStamps> board) : board_(board), seen_(board.size()) {}

  // Reads the stamps of all ranks, `elapsed` seconds after the previous call.
  std::vector<RankView> look(double elapsed);
  const RankStamps* find(int rank) const;  // null for a rank of another host
  std::string doing(int rank) const;       // "rank 2 computes micro-batch 3"
  // One line for each stamp, the newest of each rank last.
  std::string stamps_text() const;

 private:
  // What the last look() at a rank found, and the seconds since each value changed.
  struct Seen {
    uint64_t progress = 0, looks = 0, beats = 0;
    double idle = 0, deaf = 0, silent = 0;
  };

  std::span<RankStamps> board_;
  std::vector<Seen> seen_;  // one for each rank of board_
};

}  // namespace lfm2
