// The order in which a rank does its work, as data. Scorer carries the actions out, and replay() (scoring/planning)
// replays those of all ranks, to find out how long a job takes and, in the tests, that nothing deadlocks.
#pragma once

#include <cstdint>
#include <optional>

#include "comm/channel.h"

namespace lfm2 {

enum class ActionKind : uint8_t {
  kTakeTokens,  // first piece: when the buffer is free, fill it from the input
  kReceive,     // other pieces: when the buffer is free, start receiving the micro-batch into it
  kForward,     // when the micro-batch is there, compute the layers of the piece, in place
  kSend,        // all but the last piece: when it is computed, start sending it
  kGiveResult,  // last piece: compute norm and head of the wanted rows, which frees the buffer
};

struct Action {
  ActionKind kind;
  int64_t micro_batch, piece;
  int buffer;
  bool operator==(const Action&) const = default;
};

// A pipeline of `stages` ranks, each with `pieces` pieces of layers. Piece v of rank r is virtual stage
// v · stages + r: micro-batches go round the ring of ranks once for each piece.
struct PipelineShape {
  int64_t stages = 1, pieces = 1;
  int64_t virtual_stages() const { return stages * pieces; }
  bool ring() const { return pieces > 1; }  // whether the last rank sends to the first one
};

// A turn is one micro-batch on one piece of a rank. All ranks take the same turns in the same order. With several
// pieces, micro-batches go round in groups: the whole group through the first piece of every rank, then through the
// second. If there are enough micro-batches, a group is larger than the ring: its first has come round when the
// first rank has finished its last, and transfers overlap with computing. If all ranks take equally long, the pipeline
// fills and drains in (stages - 1) / pieces of the time that a micro-batch takes on a rank.
//
// A buffer is free once its micro-batch was sent, or its result was consumed. An action starts work and waits only for
// the buffer that it needs, so with two buffers micro-batch k + 1 is received while k computes and k - 1 is sent. The
// first rank of a ring has more buffers: micro-batches that come round wait there until the whole group has passed. It
// asks for one once it has sent enough to keep the other ranks busy. So nothing would deadlock even if each rank did
// one thing at a time and a send ended no sooner than its receive.
class Schedule {
 public:
  // The actions of one rank. They depend only on these numbers.
  Schedule(PipelineShape shape, int64_t stage, int64_t micro_batches);

  std::optional<Action> next();             // nothing: there are no more
  int buffers() const { return buffers_; }  // of this rank
  // The fewest micro-batches that keep all ranks of a ring busy.
  static int64_t smallest_group(PipelineShape shape) { return shape.stages + (shape.stages + 1) / 2; }
  // How many buffers the first rank has, which has the most.
  static int max_buffers(PipelineShape shape, int64_t micro_batches);

 private:
  struct Turn {
    int64_t micro_batch, piece;
    int64_t group;  // number of micro-batches that go round together
  };
  Turn turn(int64_t index) const;
  bool may_fill() const;  // whether the next buffer is filled before anything else is done
  Action action(ActionKind kind, int64_t turn) const;

  PipelineShape shape_;
  int64_t stage_, micro_batches_, turns_;
  int buffers_;
  // Number of turns whose buffers were filled, that were computed, and that were passed on.
  int64_t filled_ = 0, computed_ = 0, passed_on_ = 0;
};

}  // namespace lfm2
