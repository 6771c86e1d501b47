// The interface between the operators' checks and plans and their kernels. operators/cuda defines these functions;
// no_cuda.cpp defines them in builds without CUDA. No CUDA header is needed, because a stream is a void*.
#pragma once

#include "operators/bias.h"
#include "operators/concat.h"
#include "operators/functions.h"
#include "operators/tensor_view.h"
#include "operators/walk.h"

namespace lfm2::operators {

struct ReducePlan;
struct MatmulPlan;

namespace gpu {

// The whole is dense [outer, row]. Each of its rows consists of the parts' rows, one after another.
struct ConcatArgs {
  DType dtype;
  int device;
  void* whole;
  const TensorView* parts;
  int64_t count, outer, row, inner;  // inner: elements in one step of the axis
  int axis;
};
enum class ConcatWay { kJoin, kSplitAdd, kSplitOverwrite };

Status concat(const ConcatArgs& args, ConcatWay way, void* stream);
Status bias(const TensorView& input, const TensorView& bias, const TensorView& output, BiasLayout layout,
            Activation activation, void* stream);
Status map(UnaryFunction function, const TensorView& input, const TensorView& output, const Walk<2>& walk,
           void* stream);
Status zip(BinaryFunction function, const TensorView& a, const TensorView& b, const TensorView& output,
           const Walk<3>& walk, void* stream);
Status reduce(const ReducePlan& plan, void* workspace, void* stream);
Status matmul(const MatmulPlan& plan, void* stream);
Status causal_conv1d(const TensorView& x, const TensorView& w, const TensorView* bias, const TensorView& y,
                     Activation activation, void* stream);
Status causal_conv1d_unfold(const TensorView& x, int64_t filter, const TensorView& unfolded, void* stream);
Status causal_conv1d_expand(const TensorView& w, const TensorView& expanded, void* stream);

// Device functions for callers that do not link CUDA.
int device_count();
Status allocate(int device, size_t bytes, void** memory);
Status release(int device, void* memory);
// Either side may be host memory. Returns when the copy is done.
Status copy(int device, void* target, const void* source, size_t bytes, void* stream);
Status synchronize(int device, void* stream);
Status device_of_pointer(const void* memory, int& device);
const char* error_text(int cuda_error);

}  // namespace gpu
}  // namespace lfm2::operators
