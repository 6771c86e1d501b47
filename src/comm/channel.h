// A stage's links to its neighbours. Hidden states arrive from the previous stage and leave for the next one, in place,
// in one of the stage's buffers. In this interface `buffer` is the number of the buffer.
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

// The shape of a rank's channel. All ranks of a pipeline pass the same `ring`.
struct ChannelShape {
  int buffers = kBuffers;  // of this rank
  bool ring = false;       // whether the last rank sends to the first one
};

// The neighbours of a rank among `ranks`; nothing at the ends of a pipeline without a ring.
inline std::optional<int> previous_rank(int rank, int ranks, bool ring) {
  return rank > 0 ? std::optional(rank - 1) : ring ? std::optional(ranks - 1) : std::nullopt;
}
inline std::optional<int> next_rank(int rank, int ranks, bool ring) {
  return rank + 1 < ranks ? std::optional(rank + 1) : ring ? std::optional(0) : std::nullopt;
}

// Micro-batches (or steps) of one link arrive in the order of sending. No function blocks.
class Channel {
 public:
  virtual ~Channel() = default;

  // Starts receiving the next micro-batch into `into` [tokens, hidden]. The buffer must be free.
  virtual void receive(int buffer, const Tensor& into) = 0;
  // Whether work on the buffer may be enqueued. order_after_arrival() then delays that work until the data has arrived.
  virtual bool arrived(int buffer) = 0;
  virtual void order_after_arrival(int buffer, Stream& compute) = 0;
  // Whether the data has arrived. On GPUs this may become true later than arrived(), because a GPU's stream does the
  // waiting.
  virtual bool delivered(int buffer) { return arrived(buffer); }

  // Sends `from` [tokens, hidden] once `computed` is done. The buffer must not be touched until sent().
  virtual void send(int buffer, const Tensor& from, Event& computed) = 0;
  virtual bool sent(int buffer) = 0;  // also true if nothing was sent from the buffer yet

  // Advances transfers, and throws the error of a failed one. Returns true if a transfer advanced or will soon need the
  // host, so that a wait does not sleep.
  virtual bool progress() = 0;
  // Transfers that ended since the last call, in order for each direction, without tags. The span of a receive begins
  // when it is posted, that of a send when its data is ready.
  struct Transfers {
    std::vector<Span> sent, received;
  };
  virtual Transfers pop_finished() = 0;
};

}  // namespace lfm2
