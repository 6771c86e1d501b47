// The two edges of a stage: hidden states arrive from the stage before and leave for the stage after, in place, in one
// of its buffers. In this interface `buffer` is the number of the buffer.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "kernels/backend.h"
#include "kernels/tensor.h"

namespace lfm2 {

// The residual streams that a rank holds at a time: one is computed while the other is sent or received. The first rank
// of a ring may hold more (Schedule).
inline constexpr int kBuffers = 2;

// What a rank's channel is made for. All ranks of a pipeline say the same of `ring`.
struct ChannelShape {
  int buffers = kBuffers;  // of this rank
  bool ring = false;       // whether the last rank sends to the first one
};

// The neighbours of a rank among `ranks`; nothing at the ends of a pipeline that is no ring.
inline std::optional<int> previous_rank(int rank, int ranks, bool ring) {
  return rank > 0 ? std::optional(rank - 1) : ring ? std::optional(ranks - 1) : std::nullopt;
}
inline std::optional<int> next_rank(int rank, int ranks, bool ring) {
  return rank + 1 < ranks ? std::optional(rank + 1) : ring ? std::optional(0) : std::nullopt;
}

// Micro-batches (or steps) of one edge arrive in the order in which they were sent. No function blocks.
class Channel {
 public:
  virtual ~Channel() = default;

  // Starts receiving the next micro-batch into `into` [tokens, hidden]. The buffer must be free.
  virtual void receive(int buffer, const Tensor& into) = 0;
  // Whether work on the buffer may be enqueued. order_after_arrival() then makes that work start once the data is
  // there.
  virtual bool arrived(int buffer) = 0;
  virtual void order_after_arrival(int buffer, Stream& compute) = 0;
  // Whether the data is there. This may be later than arrived() where a GPU's stream does the waiting.
  virtual bool delivered(int buffer) { return arrived(buffer); }

  // Sends `from` [tokens, hidden] once `computed` is done. The buffer must not be touched until sent().
  virtual void send(int buffer, const Tensor& from, Event& computed) = 0;
  virtual bool sent(int buffer) = 0;  // true, too, where nothing was sent from the buffer yet

  // Moves transfers on; throws the errors of those that failed. True where something moved, or is about to, and needs
  // the host again, so that a wait had better not sleep.
  virtual bool progress() = 0;
  // Transfers that ended since the last call, in order for each direction; their tags are not set. A receive begins
  // when it is posted, a send when its data is ready.
  struct Transfers {
    std::vector<Span> sent, received;
  };
  virtual Transfers pop_finished() = 0;
};

}  // namespace lfm2
