// Every stage does the same three kinds of actions for each micro-batch, in turn.
#include "stage/pipeline/schedule.h"

namespace lfm2 {

Action scheduled_action(int64_t stage, int64_t stages, int64_t index) {
  const int64_t micro_batch = index / kActionsOfMicroBatch;
  const ActionKind kinds[kActionsOfMicroBatch] = {stage == 0 ? ActionKind::kTakeTokens : ActionKind::kReceive,
                                                  ActionKind::kForward,
                                                  stage + 1 == stages ? ActionKind::kGiveResult : ActionKind::kSend};
  return {kinds[index % kActionsOfMicroBatch], micro_batch, static_cast<int>(micro_batch % kBuffers)};
}

}  // namespace lfm2
