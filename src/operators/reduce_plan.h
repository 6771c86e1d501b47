// How a reduction is cut up, decided from shape, strides and dtype alone: pure code, so that the order of summation is
// the same in every run and on every GPU, and so that workspaces can be sized ahead.
#pragma once

#include "operators/functions.h"
#include "operators/tensor_view.h"
#include "operators/walk.h"

namespace lfm2::operators {

constexpr int64_t kStagedBytes = 256 * 144;  // rows of so many bytes go to a block's shared memory at once

struct ReducePlan {
  ReduceFunction function = ReduceFunction::kSum;
  DType dtype = DType::kF32;
  int device = kCpu;
  const void* input = nullptr;
  void* output = nullptr;
  Walk<2> kept;     // operands: input, output
  Walk<1> reduced;  // operand: input
  int64_t outputs = 1, length = 1;

  // On a GPU a thread takes units of 16 bytes. `rows`: the units lie along the reduced loops, `lanes` threads share an
  // output (a power of two up to 32, or 256), unit u belongs to lane u mod lanes. Otherwise the units lie along the
  // kept loops; a block has `lanes` units side by side (up to 64) and 256 / lanes threads to each, which take the
  // reduced elements in turn.
  bool rows = false;
  int lanes = 1;
  int unit = 4;  // elements
  // Dense rows that are no whole units (0: others): a block takes so many side by side, element e of a row belongs to
  // lane e mod lanes (a power of two up to 32). Where the rows are in several places ("samples": the outer of two
  // reduced loops), slices are of these.
  int64_t staged = 0;
  // Columns of a dense matrix whose rows are no whole units: as many rows are taken as one as make whole units, the
  // last of these long rows perhaps in part. Their partial results are [slices x fold, outputs].
  int64_t fold = 1;
  int64_t slices = 1;     // > 1: partial results [slices, outputs] in fp32, then a second stage over them
  int64_t per_slice = 0;  // units (rows), samples (staged) or reduced elements, folded (columns)

  size_t workspace_bytes() const {
    const auto partials = static_cast<size_t>(slices) * static_cast<size_t>(fold);
    return partials > 1 ? partials * static_cast<size_t>(outputs) * sizeof(float) : 0;
  }
};

// Fills all but `function` and `output`'s start; `output` may be null where only the workspace is wanted.
Status plan_reduce(const TensorView& input, const TensorView* output, uint32_t axes, ReducePlan& plan);
// The plan's first stage: over fewer and longer rows where it folds them.
ReducePlan folded(const ReducePlan& plan);
// Its second stage, over the partial results [slices, outputs]: by columns, so that its order needs nothing but sizes.
ReducePlan second_stage(const ReducePlan& plan, const float* partials);

inline int64_t units_of(int64_t elements, int unit) { return (elements + unit - 1) / unit; }

}  // namespace lfm2::operators
