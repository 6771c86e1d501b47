// One stage's two edges: hidden states come in from the stage before and go out to the stage after, in place, slot by
// slot.
#pragma once

#include <vector>

#include "kernels/backend.h"
#include "kernels/tensor.h"

namespace lfm2 {

// Residual streams that a rank holds at once: one computes while the other is sent or received.
inline constexpr int kSlots = 2;

// Items of one edge arrive in the order in which they were sent. Nothing here blocks.
class Channel {
 public:
  virtual ~Channel() = default;

  // Starts receiving the next item into `into` [tokens, hidden]. The slot must be free.
  virtual void receive(int slot, const Tensor& into) = 0;
  // Whether work on the slot may be enqueued; order_after_arrival() then makes that work start after the data is there.
  virtual bool arrived(int slot) = 0;
  virtual void order_after_arrival(int slot, Stream& compute) = 0;
  // Whether the data is there: where a GPU's stream waits for it, later than arrived().
  virtual bool delivered(int slot) { return arrived(slot); }

  // Sends `from` [tokens, hidden] once `computed` is done; the slot must stay untouched until sent().
  virtual void send(int slot, const Tensor& from, Event& computed) = 0;
  virtual bool sent(int slot) = 0;  // also true where nothing was sent from the slot yet

  virtual void progress() = 0;  // starts what has become ready; throws what has failed
  // Transfers that ended since the last call, each direction in its order; tags are not set. A receive begins when it
  // is posted, a send when its data is ready.
  struct Transfers {
    std::vector<Span> sent, received;
  };
  virtual Transfers take_finished() = 0;
};

}  // namespace lfm2
