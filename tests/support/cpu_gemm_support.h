// One matrix product of the CPU backend: its shape and types, random operands, and its result. Used by the tests
// cpu_gemm.
#pragma once

#include <fmt/format.h>

#include <cstring>
#include <string>

#include "kernels/cpu/cpu_ops.h"
#include "support/host_tensor.h"

namespace lfm2::test {

inline constexpr std::initializer_list<DType> kTypes = {DType::kF32, DType::kBf16, DType::kF16};

struct MatmulCase {
  int64_t m, n, k;
  DType act = DType::kF32, weight = DType::kF32, out = DType::kF32;
  bool bias = false;
  Write write = Write::kStore;

  std::string text() const {
    return fmt::format("m {} n {} k {} {} {} {} bias {} add {}", m, n, k, name(act), name(weight), name(out), bias,
                       write == Write::kAdd);
  }
};

struct MatmulInputs {
  explicit MatmulInputs(const MatmulCase& c)
      : a(c.act, {c.m, c.k}), w(c.weight, {c.n, c.k}), bias(c.weight, {c.n}), old(c.out, {c.m, c.n}) {
    a.fill_random(1);
    w.fill_random(2);
    bias.fill_random(3, 10.0f);
    old.fill_random(4, 10.0f);
  }
  HostTensor a, w, bias, old;
};

inline HostTensor run(const Simd& simd, int threads, const MatmulCase& c, const MatmulInputs& in) {
  ThreadPool pool(threads);
  CpuOps ops(pool, simd);
  HostTensor out(c.out, {c.m, c.n});
  if (c.write == Write::kAdd) std::memcpy(out->data, in.old->data, out->bytes());
  ops.matmul(in.a, in.w, c.bias ? in.bias.view() : Tensor{}, out, c.write);
  return out;
}

}  // namespace lfm2::test
