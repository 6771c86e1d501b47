// A rank first fills all buffers that it may fill, then computes a turn and passes it on.
#include "stage/pipeline/schedule.h"

#include <algorithm>

namespace lfm2 {

namespace {

// Without a ring, all micro-batches are one group. In a ring a group has about 1.5 micro-batches for each rank, so that
// transfers have half the time of a computation and the group does not wait for them.
int64_t group_count(PipelineShape shape, int64_t micro_batches) {
  return shape.ring() ? std::max<int64_t>(1, micro_batches / Schedule::smallest_group(shape)) : 1;
}

}  // namespace

int Schedule::max_buffers(PipelineShape shape, int64_t micro_batches) {
  if (!shape.ring()) return kBuffers;
  const int64_t groups = group_count(shape, micro_batches), largest = (micro_batches + groups - 1) / groups;
  return static_cast<int>(std::max<int64_t>(kBuffers, largest - shape.stages + 3));
}

Schedule::Schedule(PipelineShape shape, int64_t stage, int64_t micro_batches)
    : shape_(shape),
      stage_(stage),
      micro_batches_(micro_batches),
      turns_(shape.pieces * micro_batches),
      buffers_(stage == 0 ? max_buffers(shape, micro_batches) : kBuffers) {}

// Sizes of groups differ by one at most; the larger ones come first.
Schedule::Turn Schedule::turn(int64_t index) const {
  const int64_t pieces = shape_.pieces, groups = group_count(shape_, micro_batches_), size = micro_batches_ / groups,
                larger = micro_batches_ % groups, turns_of_larger = larger * (size + 1) * pieces;
  const bool in_larger = index < turns_of_larger;
  const int64_t group = in_larger ? size + 1 : size, rest = in_larger ? index : index - turns_of_larger;
  const int64_t before = (in_larger ? 0 : larger * (size + 1)) + rest / (group * pieces) * group;
  const int64_t within = rest % (group * pieces);
  return {before + within % group, within / group, group};
}

bool Schedule::may_fill() const {
  if (filled_ == turns_ || filled_ >= passed_on_ + buffers_ - 1) return false;
  if (stage_ > 0) return true;
  const Turn next = turn(filled_);
  // A micro-batch comes round after one more was sent for each other rank, or the rest of a smaller group.
  const int64_t ahead = std::min(next.group, shape_.stages - 1);
  return next.piece == 0 || filled_ - next.group + ahead <= passed_on_;
}

Action Schedule::action(ActionKind kind, int64_t turn) const {
  const Turn at = this->turn(turn);
  return {kind, at.micro_batch, at.piece, static_cast<int>(turn % buffers_)};
}

std::optional<Action> Schedule::next() {
  if (passed_on_ < computed_) {
    Action passes_on = action(ActionKind::kSend, passed_on_++);
    if (stage_ + 1 == shape_.stages && passes_on.piece + 1 == shape_.pieces) passes_on.kind = ActionKind::kGiveResult;
    return passes_on;
  }
  if (may_fill()) {
    Action fills = action(ActionKind::kReceive, filled_++);
    if (stage_ == 0 && fills.piece == 0) fills.kind = ActionKind::kTakeTokens;
    return fills;
  }
  if (computed_ == turns_) return {};
  return action(ActionKind::kForward, computed_++);
}

}  // namespace lfm2
