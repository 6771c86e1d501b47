// How a reduction is cut into blocks and slices. Pure functions decide this by shape, strides and dtype only. So the
// order of summation is the same in every run and on every GPU, and workspaces can be sized in advance.
#pragma once

#include "operators/functions.h"
#include "operators/tensor_view.h"
#include "operators/walk.h"

namespace lfm2::operators {

constexpr int64_t kStagedBytes = 256 * 144;  // bytes of rows that a block copies to its shared memory at once

struct ReducePlan {
  ReduceFunction function = ReduceFunction::kSum;
  DType dtype = DType::kF32;
  int device = kCpu;
  const void* input = nullptr;
  void* output = nullptr;
  Walk<2> kept;     // operands: input, output
  Walk<1> reduced;  // operand: input
  int64_t outputs = 1, length = 1;

  // On a GPU a thread reads units of 16 bytes. Where `rows` is true, the units lie along the reduced loops, `lanes`
  // threads share an output (a power of two up to 32, or 256), and unit u belongs to lane u mod lanes. Otherwise the
  // units lie along the kept loops; a block has `lanes` units side by side (up to 64). Each unit has 256 / lanes
  // threads, which read the reduced elements in turn.
  bool rows = false;
  int lanes = 1;
  int unit = 4;  // elements
  // For dense rows that are not whole units: a block reads this number of rows side by side; 0 for other rows. Element
  // e of a row belongs to lane e mod lanes (a power of two up to 32). If two loops are reduced, the steps of the outer
  // loop are called samples, and slices consist of samples.
  int64_t staged = 0;
  // For columns of a dense matrix whose rows are not whole units: this number of rows makes whole units and is treated
  // as one long row. The last long row may be incomplete. The partial results are [slices x fold, outputs].
  int64_t fold = 1;
  int64_t slices = 1;     // if > 1, there are partial results [slices, outputs] in fp32 and a second stage over them
  int64_t per_slice = 0;  // number of units (rows), samples (staged) or reduced elements after folding (columns)

  size_t workspace_bytes() const {
    const auto partials = static_cast<size_t>(slices) * static_cast<size_t>(fold);
    return partials > 1 ? partials * static_cast<size_t>(outputs) * sizeof(float) : 0;
  }
};

// Fills all members but `function` and the start of `output`. `output` may be null if only the workspace's size is
// needed.
Status plan_reduce(const TensorView& input, const TensorView* output, uint32_t axes, ReducePlan& plan);
// The plan's first stage, with folded rows if the plan folds: fewer and longer ones.
ReducePlan folded(const ReducePlan& plan);
// The plan's second stage, over the partial results [slices, outputs]. It reduces columns, so that its order depends on
// sizes only.
ReducePlan second_stage(const ReducePlan& plan, const float* partials);

inline int64_t units_of(int64_t elements, int unit) { return (elements + unit - 1) / unit; }

}  // namespace lfm2::operators
