// The order of one stage's actions.
#include "stage/schedule.h"

namespace lfm2 {

std::vector<Action> make_schedule(int64_t stage, int64_t stages, int64_t items) {
  std::vector<Action> actions;
  for (int64_t item = 0; item < items; ++item) {
    const int slot = static_cast<int>(item % kSlots);
    actions.push_back({stage == 0 ? ActionKind::kTakeTokens : ActionKind::kReceive, item, slot});
    actions.push_back({ActionKind::kForward, item, slot});
    actions.push_back({stage + 1 == stages ? ActionKind::kGiveResult : ActionKind::kSend, item, slot});
  }
  return actions;
}

}  // namespace lfm2
