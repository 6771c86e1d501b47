// Replays all ranks' actions against each other: the schedule is right if no order of events can break it.
#include "stage/pipeline/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <vector>

namespace lfm2 {
namespace {

std::vector<Action> actions_of(PipelineShape shape, int64_t stage, int64_t micro_batches) {
  Schedule schedule(shape, stage, micro_batches);
  std::vector<Action> actions;
  while (const std::optional<Action> action = schedule.next()) actions.push_back(*action);
  return actions;
}

// What goes through a rank: a micro-batch and the piece that it goes through.
struct Item {
  int64_t micro_batch, piece;
  bool operator==(const Item&) const = default;
};

// What a rank's devices do with its actions: actions are issued in order, a buffer must be free first; receives,
// forwards and sends then wait in queues of their own (two streams and two edges).
class RankSimulator {
 public:
  RankSimulator(PipelineShape shape, int64_t stage, int64_t micro_batches)
      : shape_(shape),
        stage_(stage),
        actions_(actions_of(shape, stage, micro_batches)),
        buffers_(static_cast<size_t>(Schedule(shape, stage, micro_batches).buffers())) {}

  bool finished() const { return next_ == actions_.size() && receives_.empty() && forwards_.empty() && sends_.empty(); }

  // Moves everything along that can move without the neighbours; true where something did. Until `taken` micro-batches
  // were taken by the first rank, no other rank knows of more.
  bool step(int64_t taken) {
    bool moved = false;
    while (next_ < actions_.size() && issue(actions_[next_], taken)) {
      ++next_;
      moved = true;
    }
    if (!forwards_.empty() && buffers_[forwards_.front()].arrived) {
      Buffer& buffer = buffers_[forwards_.front()];
      forwards_.erase(forwards_.begin());
      buffer.computed = true;
      moved = true;
    }
    return moved;
  }

  // Rendezvous: the sender's oldest send, once computed, meets the receiver's oldest posted receive.
  bool can_send() const { return !sends_.empty() && buffers_[sends_.front()].computed; }
  bool can_receive() const { return !receives_.empty(); }
  Item take_send() {
    Buffer& buffer = buffers_[sends_.front()];
    sends_.erase(sends_.begin());
    buffer.used = false;
    return buffer.item;
  }
  void take_receive(const Item& item) {
    Buffer& buffer = buffers_[receives_.front()];
    receives_.erase(receives_.begin());
    EXPECT_EQ(buffer.item.micro_batch, item.micro_batch) << "a send met the receive of another micro-batch";
    EXPECT_EQ(buffer.item.piece, stage_ == 0 ? item.piece + 1 : item.piece)
        << "a send met the receive of another piece";
    buffer.arrived = true;
  }
  int64_t taken() const { return taken_; }
  const std::vector<int64_t>& results() const { return results_; }

 private:
  struct Buffer {
    Item item{-1, -1};
    bool used = false, arrived = false, computed = false;
  };

  bool issue(const Action& action, int64_t taken) {
    const auto index = static_cast<size_t>(action.buffer);
    Buffer& buffer = buffers_.at(index);
    const Item item{action.micro_batch, action.piece};
    const bool first = stage_ == 0 && action.piece == 0,
               last = stage_ + 1 == shape_.stages && action.piece + 1 == shape_.pieces;
    switch (action.kind) {
      case ActionKind::kTakeTokens:
      case ActionKind::kReceive:
        EXPECT_EQ(action.kind == ActionKind::kTakeTokens, first);
        if (buffer.used || (stage_ > 0 && action.micro_batch >= taken)) return false;
        buffer = {.item = item, .used = true, .arrived = first};
        if (first) taken_ = action.micro_batch + 1;
        if (!first) receives_.push_back(index);
        return true;
      case ActionKind::kForward:
        EXPECT_EQ(buffer.item, item) << "the buffer was overwritten before its forward";
        forwards_.push_back(index);
        return true;
      case ActionKind::kSend:
        EXPECT_FALSE(last);
        EXPECT_EQ(buffer.item, item) << "the buffer was overwritten before it was sent";
        sends_.push_back(index);
        return true;
      case ActionKind::kGiveResult:
        EXPECT_TRUE(last);
        if (!buffer.computed) return false;
        EXPECT_EQ(buffer.item, item);
        results_.push_back(action.micro_batch);
        buffer.used = false;
        return true;
    }
    return false;
  }

  PipelineShape shape_;
  int64_t stage_;
  std::vector<Action> actions_;
  size_t next_ = 0;
  std::vector<Buffer> buffers_;
  std::vector<size_t> receives_, forwards_, sends_;  // buffers
  std::vector<int64_t> results_;
  int64_t taken_ = 0;
};

// `reverse` steps the ranks from last to first: the outcome may not depend on who is fast.
void carry_out(PipelineShape shape, int64_t micro_batches, bool reverse) {
  SCOPED_TRACE(testing::Message() << shape.stages << " stages of " << shape.pieces << " pieces, " << micro_batches
                                  << " micro-batches");
  std::vector<RankSimulator> ranks;
  for (int64_t stage = 0; stage < shape.stages; ++stage) ranks.emplace_back(shape, stage, micro_batches);
  const auto all_finished = [&] {
    return std::all_of(ranks.begin(), ranks.end(), [](const auto& rank) { return rank.finished(); });
  };
  while (!all_finished()) {
    bool moved = false;
    for (size_t i = 0; i < ranks.size(); ++i) {
      const size_t at = reverse ? ranks.size() - 1 - i : i, next = (at + 1) % ranks.size();
      moved |= ranks[at].step(ranks[0].taken());
      if (ranks[at].can_send() && ranks[next].can_receive()) {
        ranks[next].take_receive(ranks[at].take_send());
        moved = true;
      }
    }
    ASSERT_TRUE(moved) << "deadlock";
  }
  std::vector<int64_t> in_order;
  for (int64_t micro_batch = 0; micro_batch < micro_batches; ++micro_batch) in_order.push_back(micro_batch);
  EXPECT_EQ(ranks.back().results(), in_order);
}

// Each rank does one thing at a time, and neither a send nor a receive ends before the other side has come to it.
void replay_blocking(PipelineShape shape, int64_t micro_batches) {
  std::vector<std::vector<Action>> actions;
  for (int64_t stage = 0; stage < shape.stages; ++stage) actions.push_back(actions_of(shape, stage, micro_batches));
  std::vector<size_t> done(actions.size(), 0);
  const auto kind = [&](size_t rank) { return actions[rank].at(done[rank]).kind; };
  const auto finished = [&](size_t rank) { return done[rank] == actions[rank].size(); };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < actions.size(); ++rank) {
      const size_t next = (rank + 1) % actions.size();
      for (; !finished(rank); ++done[rank], moved = true) {
        if (kind(rank) == ActionKind::kReceive) break;
        if (kind(rank) != ActionKind::kSend) continue;
        if (finished(next) || kind(next) != ActionKind::kReceive) break;
        ++done[next];
      }
    }
  }
  for (size_t rank = 0; rank < actions.size(); ++rank)
    EXPECT_TRUE(finished(rank)) << shape.stages << " stages of " << shape.pieces << " pieces, " << micro_batches
                                << " micro-batches: rank " << rank << " stops at action " << done[rank];
}

TEST(ScheduleTest, EverySendMeetsItsReceiveAndNothingDeadlocks) {
  for (int64_t stages = 1; stages <= 24; ++stages)
    for (int64_t micro_batches : {1, 2, 3, 4, 5, 7, 16, 33})
      for (bool reverse : {false, true}) carry_out({stages, 1}, micro_batches, reverse);
}

TEST(ScheduleTest, NorInRingsOfAnySize) {
  for (int64_t stages = 2; stages <= 12; ++stages)
    for (int64_t pieces = 2; pieces <= 6; ++pieces)
      for (int64_t micro_batches = 1; micro_batches <= 4 * stages + 5; ++micro_batches)
        for (bool reverse : {false, true}) ASSERT_NO_FATAL_FAILURE(carry_out({stages, pieces}, micro_batches, reverse));
}

// As it would be on a device that carries all transfers of a rank out in one queue.
TEST(ScheduleTest, NothingDeadlocksEvenWhereEverySendBlocks) {
  for (int64_t stages = 1; stages <= 12; ++stages)
    for (int64_t pieces = 1; pieces <= 6; ++pieces)
      for (int64_t micro_batches = 1; micro_batches <= 4 * stages + 5; ++micro_batches)
        if (stages > 1 || pieces == 1) replay_blocking({stages, pieces}, micro_batches);
}

TEST(ScheduleTest, EveryPieceHandlesEveryMicroBatchOnce) {
  for (const PipelineShape shape : {PipelineShape{4, 1}, {4, 2}, {2, 3}})
    for (int64_t stage = 0; stage < shape.stages; ++stage) {
      std::set<std::tuple<int64_t, int64_t, ActionKind>> seen;
      for (const Action& action : actions_of(shape, stage, 19))
        EXPECT_TRUE(seen.emplace(action.micro_batch, action.piece, action.kind).second);
      EXPECT_EQ(std::ssize(seen), 3 * shape.pieces * 19);
    }
}

// The memory of a rank does not grow with the job.
TEST(ScheduleTest, TheFirstRankOfARingHasAFewBuffersMore) {
  for (int64_t micro_batches = 1; micro_batches < 2000; ++micro_batches) {
    EXPECT_EQ(Schedule({4, 1}, 0, micro_batches).buffers(), kBuffers);
    EXPECT_EQ(Schedule({4, 2}, 1, micro_batches).buffers(), kBuffers);
    EXPECT_LE(Schedule({4, 2}, 0, micro_batches).buffers(), 10);
    EXPECT_EQ(Schedule({4, 2}, 0, micro_batches).buffers(), Schedule::max_buffers({4, 2}, micro_batches));
  }
}

}  // namespace
}  // namespace lfm2
