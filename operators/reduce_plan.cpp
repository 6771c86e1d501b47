// Plans how reductions are cut.
#include "operators/reduce_plan.h"

#include <algorithm>
#include <numeric>

namespace lfm2::operators {

namespace {

constexpr int64_t kBlockThreads = 256;
// The number of blocks is enough for any GPU of today. It is constant, so that every GPU sums in the same order.
constexpr int64_t kBlocksWanted = 2048;
constexpr int64_t kStagedBlocks = 8192;  // the same for blocks with little work
constexpr int64_t kStepsAtLeast = 8;     // the fewest loads of a thread in a slice
// Rows are folded only into at least this number of long rows, so that the partial results are small beside the input.
constexpr int64_t kFoldedRows = 64;
// Rows are folded only for fewer outputs than this, because the stage over partial results counts in 32 bits.
constexpr int64_t kFoldedOutputs = int64_t{1} << 31;

int64_t power_of_two_from(int64_t x) {
  int64_t power = 1;
  while (power < x) power *= 2;
  return power;
}

// Checks that `output` has the input's shape with the reduced axes as 1 or without them; gives its strides at the
// input's axes.
Status output_strides(const TensorView& input, const TensorView& output, uint32_t axes, Extents& strides) {
  strides.fill(0);
  const bool keeps = output.rank == input.rank;
  int next = 0;
  for (int axis = 0; axis < input.rank; ++axis) {
    const bool reduced = (axes >> axis & 1u) != 0;
    if (reduced && !keeps) continue;
    if (next >= output.rank || output.dim(next) != (reduced ? 1 : input.dim(axis))) return Status::kShapeMismatch;
    if (!reduced) strides[static_cast<size_t>(axis)] = output.stride(next);
    ++next;
  }
  return next == output.rank ? Status::kOk : Status::kShapeMismatch;
}

// The number of units side by side in a block, chosen so that few of its threads are idle.
int lanes_across(int64_t units) {
  if (units % 32 == 0 || units > 1024) return 32;
  const int64_t blocks = units_of(units, 64);
  return static_cast<int>(std::max<int64_t>(1, units_of(units, static_cast<int>(blocks))));
}

// Cuts `steps` into slices of equal length, none empty, of at least `smallest` steps each. Each slice has `others`
// blocks. Folded rows multiply the partial results, so they get fewer slices.
void cut_slices(ReducePlan& plan, int64_t steps, int64_t smallest, int64_t others) {
  const int64_t wanted = std::max<int64_t>(1, kBlocksWanted / std::max<int64_t>({1, others, plan.fold}));
  const int64_t slices = std::clamp<int64_t>(steps / smallest, 1, wanted);
  plan.per_slice = std::max<int64_t>(1, (steps + slices - 1) / slices);
  plan.slices = std::max<int64_t>(1, (steps + plan.per_slice - 1) / plan.per_slice);
}

// The same for dense rows that are not whole units, if some of them fit into a block's shared memory. At most a warp
// works on a row: the lanes are enough for every thread's share to fit. Returns false for other reductions.
bool cut_staged(const Walk<1>& kept, ReducePlan& plan) {
  const Walk<1>& reduced = plan.reduced;
  if (plan.length == 0 || plan.outputs == 0 || kept.rank != 1 || reduced.rank < 1 || reduced.rank > 2) return false;
  const int64_t row = reduced.dims[0], samples = plan.length / row;
  const int64_t bytes = row * static_cast<int64_t>(size_bytes(plan.dtype));
  if (reduced.strides[0][0] != 1 || kept.strides[0][0] != row || row % plan.unit == 0) return false;
  const int64_t lanes = power_of_two_from(units_of(bytes, static_cast<int>(kStagedBytes / kBlockThreads)));
  int64_t rows = kBlockThreads / lanes;
  if (lanes > 32 || (samples > 1 && plan.outputs < rows)) return false;
  while (samples == 1 && 2 * rows * bytes <= kStagedBytes) rows *= 2;
  plan.lanes = static_cast<int>(lanes);
  plan.staged = rows;
  const int64_t wanted = std::max<int64_t>(1, kStagedBlocks / units_of(plan.outputs, static_cast<int>(rows)));
  plan.per_slice = (samples + std::min(samples, wanted) - 1) / std::min(samples, wanted);
  plan.slices = (samples + plan.per_slice - 1) / plan.per_slice;
  return true;
}

// Chooses lanes, fold, slices and per_slice for a plan whose walks are known. `kept` describes only the input, because
// a caller that asks for the size of a workspace does not have the output's strides.
void cut_reduce(const Walk<1>& kept, ReducePlan& plan) {
  plan.unit = 16 / static_cast<int>(size_bytes(plan.dtype));
  const auto step = [](const auto& walk) {
    const int64_t stride = walk.rank > 0 ? walk.strides[0][0] : 0;
    return stride < 0 ? -stride : stride;
  };
  const int64_t across = step(plan.reduced), along = step(kept);
  plan.rows = kept.rank == 0 || (plan.reduced.rank > 0 && across != 0 && (along == 0 || across < along));
  if (plan.rows && cut_staged(kept, plan)) return;
  if (plan.rows) {
    const int64_t inner = plan.reduced.rank > 0 ? plan.reduced.dims[0] : 1;
    const int64_t units = inner == 0 ? 0 : units_of(inner, plan.unit) * (plan.length / inner);
    // A thread gets one load if that leaves few threads idle, otherwise up to four. Outputs over more elements get more
    // threads, at most a warp. If there are few outputs over many elements, each gets a block.
    const int64_t each = power_of_two_from(units);
    plan.lanes = static_cast<int>(
        std::min<int64_t>(32, each <= 32 && 3 * each <= 4 * units ? each : power_of_two_from((units + 3) / 4)));
    if (units > 256 && plan.outputs < 4 * kBlocksWanted) plan.lanes = static_cast<int>(kBlockThreads);
    plan.slices = 1;
    plan.per_slice = units;
    if (plan.lanes == kBlockThreads) cut_slices(plan, units, kBlockThreads * kStepsAtLeast, plan.outputs);
  } else {
    int64_t inner = kept.dims[0], length = plan.length;
    const int64_t fold = plan.unit / std::gcd(inner, static_cast<int64_t>(plan.unit));
    if (kept.rank == 1 && plan.reduced.rank == 1 && along == 1 && across == inner && length >= fold * kFoldedRows &&
        plan.outputs < kFoldedOutputs) {
      plan.fold = fold;
      inner *= fold;
      length = (length + fold - 1) / fold;
    }
    const int64_t units = inner == 0 ? 0 : units_of(inner, plan.unit) * (plan.outputs * plan.fold / inner);
    plan.lanes = lanes_across(units);
    cut_slices(plan, length, kBlockThreads / plan.lanes * kStepsAtLeast, units_of(units, plan.lanes));
  }
}

}  // namespace

Status plan_reduce(const TensorView& input, const TensorView* output, uint32_t axes, ReducePlan& plan) {
  STATUS_CHECK(check_view(input));
  if (axes >> input.rank != 0) return Status::kInvalid;
  Extents out_strides{};
  if (output != nullptr) {
    STATUS_CHECK(check_output(*output));
    if (!same_kind(input, *output)) return Status::kInvalid;
    STATUS_CHECK(output_strides(input, *output, axes, out_strides));
  }
  Walk<1> kept;
  for (int axis = input.rank - 1; axis >= 0; --axis) {
    const auto a = static_cast<size_t>(axis);
    if ((axes >> axis & 1u) != 0) {
      plan.length *= input.dims[a];
      add_loop<1>(plan.reduced, input.dims[a], {input.strides[a]});
    } else {
      plan.outputs *= input.dims[a];
      add_loop<1>(kept, input.dims[a], {input.strides[a]});
      add_loop<2>(plan.kept, input.dims[a], {input.strides[a], out_strides[a]});
    }
  }
  tidy(plan.reduced);
  tidy(plan.kept);
  tidy(kept);
  plan.dtype = input.dtype;
  plan.device = input.device;
  plan.input = input.data;
  cut_reduce(kept, plan);
  return Status::kOk;
}

ReducePlan folded(const ReducePlan& plan) {
  ReducePlan first = plan;
  if (plan.fold == 1) return first;
  first.outputs *= plan.fold;
  first.kept.rank = 1;  // a single loop over the input's memory, whatever the output's strides are
  first.kept.dims[0] = first.outputs;
  first.kept.strides[0][0] = 1;
  first.reduced.dims[0] = (plan.length + plan.fold - 1) / plan.fold;
  first.reduced.strides[0][0] *= plan.fold;
  return first;
}

ReducePlan second_stage(const ReducePlan& plan, const float* partials) {
  constexpr int kUnit = 16 / static_cast<int>(sizeof(float));
  ReducePlan second = plan;
  second.dtype = DType::kF32;
  second.input = partials;
  int64_t step = 1;
  second.kept.start[0] = 0;
  for (int loop = 0; loop < second.kept.rank; ++loop) {
    second.kept.strides[0][loop] = step;
    step *= second.kept.dims[loop];
  }
  if (second.kept.rank == 0) {
    second.kept.rank = 1;
    second.kept.dims[0] = 1;
    second.kept.strides[0][0] = 1;
    second.kept.strides[1][0] = 1;
  }
  second.reduced = Walk<1>();
  second.length = plan.slices * plan.fold;
  add_loop<1>(second.reduced, second.length, {plan.outputs});
  second.fold = 1;
  second.staged = 0;
  second.rows = false;
  second.unit = kUnit;
  // With few outputs, a block has one unit, and many threads for it.
  const int64_t units = units_of(plan.outputs, kUnit);
  second.lanes = units >= 2048 ? 32 : units >= 512 ? 8 : 1;
  second.slices = 1;
  second.per_slice = second.length;
  return second;
}

}  // namespace lfm2::operators
