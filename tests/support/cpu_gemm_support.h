// One matrix product of the CPU backend, with any instruction set and number of threads. Used by the tests cpu_gemm.
#pragma once

#include "support/product_cases.h"

namespace lfm2::test {

inline HostTensor run(const Simd& simd, int threads, const MatmulCase& c, const MatmulInputs& in) {
  ThreadPool pool(threads);
  CpuOps ops(pool, simd);
  HostTensor out(c.out, {c.m, c.n});
  if (c.write == Write::kAdd) std::memcpy(out->data, in.old->data, out->bytes());
  ops.matmul(in.a, in.w, c.bias ? in.bias.view() : Tensor{}, out, c.write);
  return out;
}

}  // namespace lfm2::test
