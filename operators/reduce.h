// Reductions over one axis or several.
#pragma once

#include "operators/functions.h"
#include "operators/tensor_view.h"

namespace lfm2::operators {

// Reduces the axes whose bit is set in `axes` (bit 0: axis 0): each output element is f over all indices of these axes.
// The output has the input's rank with extents of 1 along these axes, or it lacks them. Both have one dtype and device,
// any strides and any extents. Over no elements, the sum is 0, the product 1 and the mean NaN. There, max and min
// return kInvalid, as in NumPy, unless the output is empty, too. Also kInvalid if a tensor fails its check or an axis
// is beyond the rank; kShapeMismatch for another output shape.
//
// On the CPU, sums and products are computed in double. On a GPU they are computed in fp32 and rounded once, in an
// order that shape, strides and dtype alone decide: the bits are the same in every run, on every GPU and at every
// address. `workspace` has reduce_workspace() bytes of device memory, aligned to 16 bytes, for the second stage of
// reductions with few outputs over many elements. It may be null if that is 0, as always on the CPU.
Status reduce(ReduceFunction function, const TensorView& input, const TensorView& output, uint32_t axes,
              void* workspace, size_t workspace_bytes, void* stream);
Status reduce_workspace(const TensorView& input, uint32_t axes, size_t& bytes);

}  // namespace lfm2::operators
