// A matrix product as the launchers of the kernels take it: its operands, a run on the GPU, and each sum in fp64 and as
// a chain of fp32 multiply-adds. Shared by the tests that call launchers.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/gpu.h"
#include "kernels/cuda/gemm/launch.h"

namespace lfm2::test {

struct Product {
  int64_t m, n, k;
  DType act, weight, out;
  Epilogue epilogue = Epilogue::kStore;
  DType bias = DType::kI32;        // kI32: there is none
  std::vector<double> split = {};  // offsets of the groups; empty: the product is dense

  int64_t groups() const { return split.empty() ? 1 : static_cast<int64_t>(split.size()) - 1; }
  int64_t columns() const { return epilogue == Epilogue::kSwiglu ? n / 2 : n; }
  bool has_bias() const { return bias != DType::kI32; }
  std::string text() const {
    return fmt::format("m {} n {} k {} {} {} to {} epilogue {} bias {} groups {}", m, n, k, name(act), name(weight),
                       name(out), static_cast<int>(epilogue), has_bias() ? name(bias) : "none", groups());
  }
};

inline Product half_product(int64_t m, int64_t n, int64_t k, DType act = DType::kBf16, DType out = DType::kBf16,
                            Epilogue epilogue = Epilogue::kStore, DType bias = DType::kI32,
                            std::vector<double> split = {}) {
  return {m, n, k, act, act, out, epilogue, bias, std::move(split)};
}

struct Operands {
  Operands(const Product& p, float weight_spread)
      : a(p.act, {p.m, p.k}),
        w(p.weight, {p.groups(), p.n, p.k}),
        bias(p.has_bias() ? p.bias : DType::kF32, {p.n}),
        old(p.out, {p.m, p.columns()}),
        offsets(DType::kI32, {p.groups() + 1}) {
    a.fill_random(1);
    w.fill_random(2, weight_spread);
    bias.fill_random(3);
    old.fill_random(4);
    if (p.epilogue != Epilogue::kAdd) old.fill(NAN);  // so that an element that is not written is noticed
    if (!p.split.empty()) offsets.fill(p.split);
  }
  HostTensor a, w, bias, old, offsets;
};

using Launch = std::function<void(const GemmArgs&)>;

inline HostTensor run(const Product& p, const Operands& in, const Launch& launch) {
  const DeviceTensor a(in.a), w(in.w), bias(in.bias), out(in.old), offsets(in.offsets);
  const GemmArgs args{.a = a->data,
                      .w = {w->data, w->dtype},
                      .bias = p.has_bias() ? AnyArray{bias->data, bias->dtype} : AnyArray{},
                      .out = out->data,
                      .offsets = p.split.empty() ? nullptr : offsets->as<const int32_t>(),
                      .m = p.m,
                      .n = p.n,
                      .k = p.k,
                      .groups = p.groups(),
                      .epilogue = p.epilogue};
  gpu().compute().drain();
  launch(args);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  HostTensor result(p.out, {p.m, p.columns()});
  out.fetch(result);
  return result;
}

// One sum before the epilogue, and the same sum of absolute values.
struct Sum {
  double exact = 0, magnitude = 0;
  float chain = 0;
};

inline Sum sum_of(const Product& p, const Operands& in, int64_t row, int64_t column) {
  int64_t group = 0;
  while (group + 1 < p.groups() && static_cast<double>(row) >= p.split[static_cast<size_t>(group) + 1]) ++group;
  Sum sum;
  for (int64_t k = 0; k < p.k; ++k) {
    const double x = in.a.get(static_cast<size_t>(row * p.k + k)),
                 y = in.w.get(static_cast<size_t>((group * p.n + column) * p.k + k));
    sum.exact += x * y;
    sum.magnitude += std::fabs(x * y);
    sum.chain = std::fmaf(static_cast<float>(x), static_cast<float>(y), sum.chain);
  }
  if (p.has_bias()) {
    const double bias = in.bias.get(static_cast<size_t>(column));
    sum.exact += bias;
    sum.magnitude += std::fabs(bias);
    sum.chain += static_cast<float>(bias);
  }
  return sum;
}

// The two sums that make an element of out after kSwiglu.
struct GateUp {
  Sum gate, up;
};

inline GateUp gate_up_of(const Product& p, const Operands& in, int64_t row, int64_t column) {
  const int64_t gate = column / kGateUpBlock * 2 * kGateUpBlock + column % kGateUpBlock;
  return {sum_of(p, in, row, gate), sum_of(p, in, row, gate + kGateUpBlock)};
}

inline double silu(double x) { return x / (1 + std::exp(-x)); }

}  // namespace lfm2::test
