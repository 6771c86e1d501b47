// The order of one stage's actions.
#include "stage/pipeline/schedule.h"

namespace lfm2 {

Action scheduled_action(int64_t stage, int64_t stages, int64_t index) {
  const int64_t item = index / kActionsOfItem;
  const ActionKind kinds[kActionsOfItem] = {stage == 0 ? ActionKind::kTakeTokens : ActionKind::kReceive,
                                            ActionKind::kForward,
                                            stage + 1 == stages ? ActionKind::kGiveResult : ActionKind::kSend};
  return {kinds[index % kActionsOfItem], item, static_cast<int>(item % kSlots)};
}

}  // namespace lfm2
