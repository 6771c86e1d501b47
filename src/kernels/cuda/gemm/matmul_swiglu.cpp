// matmul_swiglu: the gate and up projections of a dense feed-forward in one product, and their SwiGLU.
#include "kernels/cuda/gemm/products.h"

namespace lfm2 {

void Products::matmul_swiglu(const Tensor& a, const Tensor& w, const Tensor& out) {
  expect(a.rank == 2 && w.rank == 2 && out.rank == 2 && a.dim(1) == w.dim(1) && out.dim(0) == a.dim(0),
         "matmul_swiglu: shapes");
  multiply_groups(a, w.reshape({1, w.dim(0), w.dim(1)}), {}, out, Epilogue::kSwiglu);
}

}  // namespace lfm2
