// The order in which a stage does its work, as data. A pure function returns each action; Scorer carries it out, and a
// simulator in the tests replays it.
#pragma once

#include <cstdint>

#include "comm/channel.h"

namespace lfm2 {

enum class ActionKind : uint8_t {
  kTakeTokens,  // first stage: when the buffer is free, fill it from the input
  kReceive,     // other stages: when the buffer is free, start receiving the micro-batch into it
  kForward,     // when the micro-batch is there, compute the stage's layers, in place
  kSend,        // all but the last stage: when it is computed, start sending it
  kGiveResult,  // last stage: compute norm and head of the wanted rows, which frees the buffer
};

struct Action {
  ActionKind kind;
  int64_t micro_batch;
  int buffer;
  bool operator==(const Action&) const = default;
};

// A buffer is free once its micro-batch was sent, or its result was taken. An action starts work and waits only for the
// buffer that it needs. So micro-batch k + 1 is received while k computes and k - 1 is sent.
inline constexpr int64_t kActionsOfMicroBatch = 3;
// The action number `index`, of kActionsOfMicroBatch for each micro-batch. It is computed, so that a job of any length
// needs no list.
Action scheduled_action(int64_t stage, int64_t stages, int64_t index);

}  // namespace lfm2
