// What a stage does, in order, as data: a pure function tells each action, Scorer interprets it, a simulator in the
// tests replays it.
#pragma once

#include <cstdint>

#include "comm/channel.h"

namespace lfm2 {

enum class ActionKind : uint8_t {
  kTakeTokens,  // first stage: the slot is free, its tokens are taken from the input
  kReceive,     // other stages: once the slot is free, start receiving the item into it
  kForward,     // once the item is there: the stage's layers, in place
  kSend,        // all but the last stage: once computed, start sending
  kGiveResult,  // last stage: norm and head of the wanted rows; frees the slot
};

struct Action {
  ActionKind kind;
  int64_t item;
  int slot;
  bool operator==(const Action&) const = default;
};

// A slot is free once the item before it in the same slot was sent, or its result taken. Receives run ahead of sends by
// themselves: an action starts work, it waits only for the slot it needs, so item k + 1 is received while item k
// computes and item k - 1 is sent.
inline constexpr int64_t kActionsOfItem = 3;
// Action `index` of kActionsOfItem x items: a job of any length has no list of them.
Action scheduled_action(int64_t stage, int64_t stages, int64_t index);

}  // namespace lfm2
