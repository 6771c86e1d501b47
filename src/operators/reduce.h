// Reductions over one axis or several.
#pragma once

#include "operators/functions.h"
#include "operators/tensor_view.h"

namespace lfm2::operators {

// output[kept indices] = f over the indices of the axes whose bit is set in `axes` (bit 0: axis 0). The output has the
// input's rank with extents of 1 along these axes, or it lacks them. One dtype and device; any strides, any extents.
// Over nothing: sum 0, prod 1, mean NaN; max and min are kInvalid, as in NumPy (unless the output is empty too).
// kInvalid: a check of one tensor, an axis beyond the rank; kShapeMismatch: another output shape.
//
// On the CPU sums and products are formed in double. On a GPU in fp32, rounded once, in an order fixed by shape,
// strides and dtype alone: the same bits in every run, on every GPU and at every address. `workspace`:
// reduce_workspace() bytes on the device, on 16 bytes, for the second stage of reductions with few long outputs; may be
// null where that is 0 (always on the CPU).
Status reduce(ReduceFunction function, const TensorView& input, const TensorView& output, uint32_t axes,
              void* workspace, size_t workspace_bytes, void* stream);
Status reduce_workspace(const TensorView& input, uint32_t axes, size_t& bytes);

}  // namespace lfm2::operators
