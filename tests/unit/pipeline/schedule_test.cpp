// Replays all stages' action lists against each other: the schedule is right if no order of events can break it.
#include "stage/pipeline/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace lfm2 {
namespace {

std::vector<Action> make_schedule(int64_t stage, int64_t stages, int64_t micro_batches) {
  std::vector<Action> actions;
  for (int64_t index = 0; index < kActionsOfMicroBatch * micro_batches; ++index)
    actions.push_back(scheduled_action(stage, stages, index));
  return actions;
}

// What a stage's devices do with an action list: actions are issued in order, a buffer must be free first; receives,
// forwards and sends then wait in queues of their own (two streams and two edges). Times are in units of one forward.
class StageSimulator {
 public:
  StageSimulator(int64_t stage, int64_t stages, int64_t micro_batches)
      : first_(stage == 0), last_(stage + 1 == stages), actions_(make_schedule(stage, stages, micro_batches)) {}

  bool finished() const { return next_ == actions_.size() && receives_.empty() && forwards_.empty() && sends_.empty(); }

  // Moves everything along that can move without the neighbours; true where something did.
  bool step() {
    bool moved = false;
    while (next_ < actions_.size() && issue(actions_[next_])) {
      ++next_;
      moved = true;
    }
    if (!forwards_.empty() && (first_ || arrived_[buffer(forwards_.front())] == forwards_.front())) {
      const int64_t micro_batch = forwards_.front();
      forwards_.erase(forwards_.begin());
      EXPECT_EQ(holds_[buffer(micro_batch)], micro_batch) << "the buffer was overwritten before its forward";
      computed_.push_back(micro_batch);
      moved = true;
    }
    return moved;
  }

  // Rendezvous: the sender's oldest computed send meets the receiver's oldest posted receive.
  bool can_send() const {
    return !sends_.empty() && std::find(computed_.begin(), computed_.end(), sends_.front()) != computed_.end();
  }
  bool can_receive() const { return !receives_.empty(); }
  int64_t take_send() {
    const int64_t micro_batch = sends_.front();
    EXPECT_EQ(holds_[buffer(micro_batch)], micro_batch) << "the buffer was overwritten before it was sent";
    sends_.erase(sends_.begin());
    free(micro_batch);
    return micro_batch;
  }
  void take_receive(int64_t sent) {
    const int64_t micro_batch = receives_.front();
    EXPECT_EQ(micro_batch, sent) << "a send met the receive of another micro_batch";
    receives_.erase(receives_.begin());
    arrived_[buffer(micro_batch)] = micro_batch;
  }
  const std::vector<int64_t>& results() const { return results_; }

 private:
  static size_t buffer(int64_t micro_batch) { return static_cast<size_t>(micro_batch % kBuffers); }
  void free(int64_t micro_batch) { busy_[buffer(micro_batch)] = false; }

  bool issue(const Action& action) {
    EXPECT_EQ(action.buffer, static_cast<int>(action.micro_batch % kBuffers));
    switch (action.kind) {
      case ActionKind::kTakeTokens:
      case ActionKind::kReceive:
        EXPECT_EQ(action.kind == ActionKind::kTakeTokens, first_);
        if (busy_[buffer(action.micro_batch)]) return false;
        busy_[buffer(action.micro_batch)] = true;
        holds_[buffer(action.micro_batch)] = action.micro_batch;
        if (!first_) receives_.push_back(action.micro_batch);
        return true;
      case ActionKind::kForward:
        forwards_.push_back(action.micro_batch);
        return true;
      case ActionKind::kSend:
        EXPECT_FALSE(last_);
        sends_.push_back(action.micro_batch);
        return true;
      case ActionKind::kGiveResult:
        EXPECT_TRUE(last_);
        if (std::find(computed_.begin(), computed_.end(), action.micro_batch) == computed_.end()) return false;
        results_.push_back(action.micro_batch);
        free(action.micro_batch);
        return true;
    }
    return false;
  }

  bool first_, last_;
  std::vector<Action> actions_;
  size_t next_ = 0;
  std::vector<int64_t> receives_, forwards_, sends_, computed_, results_;
  bool busy_[kBuffers] = {};
  int64_t holds_[kBuffers] = {-1, -1}, arrived_[kBuffers] = {-1, -1};
};

// `reverse` steps the stages from last to first: the outcome may not depend on who is fast.
void replay(int64_t stages, int64_t micro_batches, bool reverse) {
  SCOPED_TRACE(testing::Message() << stages << " stages, " << micro_batches << " micro_batches");
  std::vector<StageSimulator> ranks;
  for (int64_t stage = 0; stage < stages; ++stage) ranks.emplace_back(stage, stages, micro_batches);
  const auto all_finished = [&] {
    return std::all_of(ranks.begin(), ranks.end(), [](const auto& rank) { return rank.finished(); });
  };
  while (!all_finished()) {
    bool moved = false;
    for (size_t i = 0; i < ranks.size(); ++i) {
      const size_t at = reverse ? ranks.size() - 1 - i : i;
      moved |= ranks[at].step();
      if (at + 1 < ranks.size() && ranks[at].can_send() && ranks[at + 1].can_receive()) {
        ranks[at + 1].take_receive(ranks[at].take_send());
        moved = true;
      }
    }
    ASSERT_TRUE(moved) << "deadlock";
  }
  std::vector<int64_t> in_order;
  for (int64_t micro_batch = 0; micro_batch < micro_batches; ++micro_batch) in_order.push_back(micro_batch);
  EXPECT_EQ(ranks.back().results(), in_order);
}

TEST(ScheduleTest, EverySendMeetsItsReceiveAndNothingDeadlocks) {
  for (int64_t stages = 1; stages <= 24; ++stages)
    for (int64_t micro_batches : {1, 2, 3, 4, 5, 7, 16, 33})
      for (bool reverse : {false, true}) replay(stages, micro_batches, reverse);
}

TEST(ScheduleTest, EveryStageHandlesEveryItemOnce) {
  for (int64_t stage = 0; stage < 4; ++stage) {
    const std::vector<Action> actions = make_schedule(stage, 4, 9);
    for (int64_t micro_batch = 0; micro_batch < 9; ++micro_batch)
      EXPECT_EQ(std::count_if(actions.begin(), actions.end(),
                              [&](const Action& action) { return action.micro_batch == micro_batch; }),
                3);
  }
}

}  // namespace
}  // namespace lfm2
