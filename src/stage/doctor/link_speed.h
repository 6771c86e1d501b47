// Measures the speed of the links between stages, over the channel that a run would use. Used by doctor.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "comm/channel.h"
#include "comm/mpi_world.h"
#include "comm/wait.h"

namespace lfm2 {

struct LinkSpeed {
  double bytes_per_second = 0;  // of consecutive transfers of the largest size
  // The time until one row has arrived and an empty MPI message has come back; the median of several round trips.
  double round_trip_seconds = 0;
};

// Measures the links of a pipeline. After an error the object must live until the process ends, because transfers may
// still use its memory.
class LinkMeasurement {
 public:
  // Collective over `pipeline`. Each transfer is a buffer of `tokens` rows.
  LinkMeasurement(const MpiGroup& pipeline, Backend& backend, Channel& channel, int64_t tokens, int64_t row_bytes,
                  double timeout_seconds);

  // Measures one link after another, so that they do not disturb each other. Collective. Returns the speed of this
  // rank's link to the next stage; nothing on the last stage. Error(kLost) if nothing arrives for `timeout_seconds`.
  std::optional<LinkSpeed> measure();

 private:
  LinkSpeed measure_link(const MpiGroup& pair);
  // Returns the seconds until the sender has the confirmation that all `count` transfers arrived.
  double transfer(const MpiGroup& pair, int count, int64_t rows);
  void send(int count, int64_t rows);
  void receive(int count, int64_t rows);
  void wait_until_sent(int unit);

  struct StageBuffer {
    Buffer memory;
    Tensor unit;
    std::unique_ptr<Event> computed;
  };

  const MpiGroup& pipeline_;
  // Groups of two ranks: even_ for the links 0-1, 2-3, ..., odd_ for the links 1-2, 3-4, ...
  MpiGroup even_, odd_;
  Backend& backend_;
  Channel& channel_;
  std::array<StageBuffer, kBuffers> buffers_;
  double timeout_seconds_;
  Wait wait_;
};

}  // namespace lfm2
