// How fast hidden states go from each stage to the next, over the channel that a run would use: for doctor.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "comm/channel.h"
#include "comm/mpi_world.h"
#include "comm/wait.h"

namespace lfm2 {

struct LinkSpeed {
  double bytes_per_second = 0;    // of whole items, one behind the other
  double round_trip_seconds = 0;  // of one row there, and an empty message of MPI back; the median of several
};

// After an error it must stay alive until the process ends: transfers may still use its memory.
class LinkTest {
 public:
  // Collective over `pipeline`. Items are slots of `tokens` rows.
  LinkTest(const MpiGroup& pipeline, Backend& backend, Channel& channel, int64_t tokens, int64_t row_bytes,
           double timeout_seconds);

  // One link after the other, so that none disturbs another. Collective; this rank's link to the next stage, nothing on
  // the last. Error(kLost) where nothing comes for `timeout_seconds`.
  std::optional<LinkSpeed> measure();

 private:
  LinkSpeed measure_link(const MpiGroup& pair);
  // Returns the seconds until the sender knows that all have come.
  double transfer(const MpiGroup& pair, int count, int64_t rows);
  void send(int count, int64_t rows);
  void receive(int count, int64_t rows);
  void wait_until_sent(int item);

  struct Slot {
    Buffer memory;
    Tensor item;
    std::unique_ptr<Event> computed;
  };

  const MpiGroup& pipeline_;
  MpiGroup even_, odd_;  // the two ranks of the links 0-1, 2-3, ... and 1-2, 3-4, ...
  Backend& backend_;
  Channel& channel_;
  std::array<Slot, kSlots> slots_;
  double timeout_seconds_;
  Wait wait_;
};

}  // namespace lfm2
