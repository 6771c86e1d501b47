// What a stage does, in order, as data: a pure function tells each action, Scorer interprets it, a simulator in the
// tests replays it.
#pragma once

#include <cstdint>

#include "comm/channel.h"

namespace lfm2 {

enum class ActionKind : uint8_t {
  kTakeTokens,  // first stage: the buffer is free, its tokens are taken from the input
  kReceive,     // other stages: once the buffer is free, start receiving the micro-batch into it
  kForward,     // once the micro-batch is there: the stage's layers, in place
  kSend,        // all but the last stage: once computed, start sending
  kGiveResult,  // last stage: norm and head of the wanted rows; frees the buffer
};

struct Action {
  ActionKind kind;
  int64_t micro_batch;
  int buffer;
  bool operator==(const Action&) const = default;
};

// A buffer is free once the micro-batch before it in the same buffer was sent, or its result taken. Receives run ahead
// of sends by themselves: an action starts work, it waits only for the buffer it needs, so micro-batch k + 1 is
// received while micro-batch k computes and micro-batch k - 1 is sent.
inline constexpr int64_t kActionsOfMicroBatch = 3;
// Action `index` of kActionsOfMicroBatch x micro-batches: a job of any length has no list of them.
Action scheduled_action(int64_t stage, int64_t stages, int64_t index);

}  // namespace lfm2
