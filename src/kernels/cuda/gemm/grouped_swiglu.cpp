// grouped_swiglu: the gate and up projections of each expert in one product, and their SwiGLU.
#include "kernels/cuda/gemm/products.h"

namespace lfm2 {

void Products::grouped_swiglu(const Tensor& a, const Tensor& w, const Tensor& expert_offsets, const Tensor& out) {
  multiply_groups(a, w, expert_offsets, out, Epilogue::kSwiglu);
}

}  // namespace lfm2
