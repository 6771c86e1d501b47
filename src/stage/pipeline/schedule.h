// The order of a rank's work, as data. Scorer carries the actions out. replay() (scoring/planning) simulates all ranks,
// to predict the time of a job and, in the tests, to show that nothing deadlocks.
#pragma once

#include <cstdint>
#include <optional>

#include "comm/channel.h"

namespace lfm2 {

enum class ActionKind : uint8_t {
  kTakeTokens,  // first piece: when the buffer is free, fill it from the input
  kReceive,     // other pieces: when the buffer is free, start receiving the micro-batch into it
  kForward,     // when the micro-batch has arrived, compute the layers of the piece, in place
  kSend,        // all but the last piece: when the forward is computed, start sending the buffer
  kGiveResult,  // last piece: compute norm and LM head of the result rows, which frees the buffer
};

struct Action {
  ActionKind kind;
  int64_t micro_batch, piece;
  int buffer;
  bool operator==(const Action&) const = default;
};

// A pipeline of `stages` ranks, each with `pieces` pieces of layers (interleaved stages). Piece v of rank r is virtual
// stage v · stages + r. Micro-batches go round the ring of ranks once for each piece.
struct PipelineShape {
  int64_t stages = 1, pieces = 1;
  int64_t virtual_stages() const { return stages * pieces; }
  bool ring() const { return pieces > 1; }  // whether the last rank sends to the first one
};

// A turn is one micro-batch on one piece of a rank. All ranks take the same turns in the same order. With several
// pieces, micro-batches go round in groups: the whole group goes through the first piece of every rank, then through
// the second. If there are enough micro-batches, a group is larger than the ring. Then its first micro-batch has come
// round when the first rank finishes the group's last, and transfers overlap with computation. If all ranks are equally
// fast, the pipeline fills and drains in (stages - 1) / pieces of a micro-batch's time on a rank.
//
// A buffer is free once its micro-batch was sent or its result was consumed. An action starts work and waits only for
// its buffer. So with two buffers, micro-batch k + 1 is received while k is computed and k - 1 is sent. The first rank
// of a ring has more buffers, where returning micro-batches wait until the whole group has passed. That rank posts a
// receive once it has sent enough micro-batches to keep the other ranks busy. So nothing deadlocks, even if each rank
// does one thing at a time and no send ends before its receive.
class Schedule {
 public:
  // The actions of one rank. They depend only on these numbers.
  Schedule(PipelineShape shape, int64_t stage, int64_t micro_batches);

  std::optional<Action> next();             // nothing after the last action
  int buffers() const { return buffers_; }  // of this rank
  // The smallest number of micro-batches that keeps all ranks of a ring busy.
  static int64_t smallest_group(PipelineShape shape) { return shape.stages + (shape.stages + 1) / 2; }
  // The number of buffers of the first rank, which has the most.
  static int max_buffers(PipelineShape shape, int64_t micro_batches);

 private:
  struct Turn {
    int64_t micro_batch, piece;
    int64_t group;  // number of micro-batches that go round together
  };
  Turn turn(int64_t index) const;
  bool may_fill() const;  // whether the next action fills a buffer
  Action action(ActionKind kind, int64_t turn) const;

  PipelineShape shape_;
  int64_t stage_, micro_batches_, turns_;
  int buffers_;
  // Numbers of turns that were filled, computed, and passed on.
  int64_t filled_ = 0, computed_ = 0, passed_on_ = 0;
};

}  // namespace lfm2
