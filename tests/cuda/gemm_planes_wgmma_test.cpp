// The Hopper version of the exact fp32 product, called by its launcher: against fp64 and a plain chain of fp32
// multiply-adds, with every epilogue, split and edge.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>

#include "cuda/gpu.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/launch.h"

namespace lfm2 {
namespace {

using namespace test;

struct Product {
  int64_t m, n, k;
  DType weight = DType::kBf16;
  Epilogue epilogue = Epilogue::kStore;
  DType bias = DType::kI32;       // kI32: none
  std::vector<double> split = {};  // offsets of the groups; none: dense
  const char* kind = "normal";

  int64_t groups() const { return split.empty() ? 1 : static_cast<int64_t>(split.size()) - 1; }
  int64_t columns() const { return epilogue == Epilogue::kSwiglu ? n / 2 : n; }
  bool has_bias() const { return bias != DType::kI32; }
  std::string text() const {
    return fmt::format("m {} n {} k {} {} epilogue {} bias {} groups {} {}", m, n, k, name(weight),
                       static_cast<int>(epilogue), has_bias() ? name(bias) : "none", groups(), kind);
  }
};

struct Operands {
  explicit Operands(const Product& p)
      : a(DType::kF32, {p.m, p.k}),
        w(p.weight, {p.groups(), p.n, p.k}),
        bias(p.has_bias() ? p.bias : DType::kF32, {p.n}),
        old(DType::kF32, {p.m, p.columns()}),
        offsets(DType::kI32, {p.groups() + 1}) {
    a.fill_random(1);
    w.fill_random(2, 0.03f);
    bias.fill_random(3);
    old.fill_random(4);
    if (p.epilogue != Epilogue::kAdd) old.fill(NAN);  // what was not written shows
    if (!p.split.empty()) offsets.fill(p.split);
  }
  HostTensor a, w, bias, old, offsets;
};

HostTensor run(const Product& p, const Operands& in) {
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
  launch_gemm_planes_wgmma(nullptr, args);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  HostTensor result(DType::kF32, {p.m, p.columns()});
  out.fetch(result);
  return result;
}

// One sum in fp64, as a chain of fp32 multiply-adds, and of the absolute values.
struct Sum {
  double exact = 0, magnitude = 0;
  float chain = 0;
};

Sum sum_of(const Product& p, const Operands& in, int64_t row, int64_t column) {
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

double silu(double x) { return x / (1 + std::exp(-x)); }

struct CudaGemmPlanesWgmmaTest : ::testing::Test {
  void SetUp() override {
    if (cuda_device_facts(0).compute_capability != 90) GTEST_SKIP() << "needs a Hopper GPU";
  }

  // Every element within what the method may lose; returns the rms errors of the GPU and of the plain chain.
  std::pair<double, double> check(const Product& p, const Operands& in) {
    const HostTensor out = run(p, in);
    double squares = 0, chain_squares = 0;
    int64_t wrong = 0;
    for (int64_t row = 0; row < p.m; ++row)
      for (int64_t column = 0; column < p.columns(); ++column) {
        const double actual = out.get(static_cast<size_t>(row * p.columns() + column));
        double expected, chain, tolerance;
        if (p.epilogue == Epilogue::kSwiglu) {
          const int64_t gate_column = column / kGateUpBlock * 2 * kGateUpBlock + column % kGateUpBlock;
          const Sum gate = sum_of(p, in, row, gate_column), up = sum_of(p, in, row, gate_column + kGateUpBlock);
          expected = silu(gate.exact) * up.exact;
          chain = silu(gate.chain) * up.chain;
          tolerance = 1.2 * gate.magnitude * std::fabs(up.exact) + std::fabs(silu(gate.exact)) * up.magnitude;
        } else {
          const Sum sum = sum_of(p, in, row, column);
          expected = sum.exact;
          chain = sum.chain;
          tolerance = sum.magnitude;
          if (p.epilogue == Epilogue::kAdd) {
            const double old = in.old.get(static_cast<size_t>(row * p.n + column));
            expected += old;
            chain = static_cast<float>(chain) + static_cast<float>(old);
            tolerance += std::fabs(old);
          }
        }
        if (!std::isfinite(chain) || !std::isfinite(actual)) {
          if (std::isnan(chain) ? !std::isnan(actual) : actual != chain) ++wrong;
          continue;
        }
        if (!(std::fabs(actual - expected) <= 8 * 0x1p-24 * tolerance + 0x1p-149)) ++wrong;
        squares += std::pow(actual - expected, 2);
        chain_squares += std::pow(chain - expected, 2);
      }
    EXPECT_EQ(wrong, 0) << p.text();
    const auto count = static_cast<double>(std::max<int64_t>(1, p.m * p.columns()));
    return {std::sqrt(squares / count), std::sqrt(chain_squares / count)};
  }
  void check(const Product& p) { check(p, Operands(p)); }
};

constexpr DType kWeightTypes[] = {DType::kBf16, DType::kF32};

TEST_F(CudaGemmPlanesWgmmaTest, OddSizes) {
  for (const DType weight : kWeightTypes) {
    for (const int64_t k : {8, 64, 72, 264})
      for (const int64_t m : {1, 3, 64, 65, 130})
        for (const int64_t n : {8, 128, 136, 264}) check({m, n, k, weight});
    check({300, 520, 1032, weight});
  }
  for (const int64_t k : {4, 12, 68}) check({70, 40, k, DType::kF32});
}

TEST_F(CudaGemmPlanesWgmmaTest, EveryEpilogueAndBias) {
  for (const DType weight : kWeightTypes)
    for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kAdd, Epilogue::kSwiglu})
      for (const DType bias : {DType::kI32, DType::kBf16, DType::kF16, DType::kF32})
        for (const int64_t n : {16, 144, 272})
          for (const int64_t k : {0, 24, 328}) check({67, n, k, weight, epilogue, bias});
}

TEST_F(CudaGemmPlanesWgmmaTest, EmptyInputs) {
  for (const DType weight : kWeightTypes) {
    check({0, 24, 40, weight});
    check({.m = 0, .n = 24, .k = 40, .weight = weight, .split = {0, 0, 0}});
  }
}

TEST_F(CudaGemmPlanesWgmmaTest, EverySplit) {
  for (const DType weight : kWeightTypes)
    for (const auto& split : {std::vector<double>{0, 3, 3, 10, 150, 151},
                              {0, 0, 0, 151, 151, 151},
                              {0, 151, 151, 151, 151, 151},
                              {0, 30, 60, 90, 120, 151},
                              {0, 0, 0, 0, 0, 151}})
      for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kAdd, Epilogue::kSwiglu}) {
        check({151, 80, 520, weight, epilogue, DType::kI32, split});
        check({151, 272, 64, weight, epilogue, DType::kI32, split});
      }
}

TEST_F(CudaGemmPlanesWgmmaTest, ManyExperts) {
  for (const DType weight : kWeightTypes)
    for (const int experts : {70, 1024}) {
      std::vector<double> split = {0};
      for (int e = 0; e < experts; ++e) split.push_back(split.back() + (experts == 70 ? e : e * 7 % 11 == 0 ? e % 5 : 0));
      check({static_cast<int64_t>(split.back()), 24, 40, weight, Epilogue::kStore, DType::kI32, split});
    }
}

TEST_F(CudaGemmPlanesWgmmaTest, LosesNoMoreThanPlainFp32) {
  for (const DType weight : kWeightTypes)
    for (const char* kind : {"normal", "outliers", "cancellation", "tiny", "huge"}) {
      const Product p{.m = 48, .n = 64, .k = 2048, .weight = weight, .kind = kind};
      SCOPED_TRACE(p.text());
      Operands in(p);
      const std::string kind_name = kind;
      for (size_t i = 0; i < in.a.size(); ++i) {
        const size_t column = i % static_cast<size_t>(p.k);
        if (kind_name == "outliers" && column % 700 == 3) in.a.set(i, 60 * in.a.get(i));
        if (kind_name == "cancellation" && column % 2 == 1) in.a.set(i, -in.a.get(i - 1) * (1 + 1e-4 * in.a.get(i)));
        if (kind_name == "tiny") in.a.set(i, in.a.get(i) * 1e-30);
        if (kind_name == "huge") in.a.set(i, in.a.get(i) * 1e30);
      }
      if (kind_name == "cancellation")
        for (size_t i = 1; i < in.w.size(); i += 2) in.w.set(i, in.w.get(i - 1));
      const auto [planes, plain] = check(p, in);
      EXPECT_LE(planes, plain);
      EXPECT_GT(plain, 0);
      std::printf("%s, %s weights: rms error of the planes %.3g, of plain fp32 %.3g\n", kind,
                  std::string(name(weight)).c_str(), planes, plain);
    }
}

// Infinities and NaN, of activations and of weights, beside zeros and values whose lower planes are zero.
TEST_F(CudaGemmPlanesWgmmaTest, PassesInfinitiesAndNansThrough) {
  for (const DType weight : kWeightTypes)
    for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kSwiglu}) {
      const Product p{.m = 140, .n = 144, .k = 200, .weight = weight, .epilogue = epilogue, .split = {0, 40, 140}};
      Operands in(p);
      for (size_t n = 0; n < static_cast<size_t>(p.n); ++n) in.w.set(n * 200 + 7, n % 3 == 0 ? 0 : n % 3 == 1 ? 1 : 1.3);
      in.a.set(3 * 200 + 7, INFINITY);
      in.a.set(5 * 200 + 7, -INFINITY);
      in.a.set(9 * 200 + 199, NAN);
      in.a.set(11 * 200 + 7, INFINITY);
      in.a.set(11 * 200 + 64, -INFINITY);
      in.a.set(100 * 200 + 1, INFINITY);
      in.w.set((144 + 20) * 200 + 5, INFINITY);
      in.w.set((144 + 29) * 200 + 5, NAN);
      for (size_t row = 40; row < 60; ++row) in.a.set(row * 200 + 5, row % 2 == 0 ? 1 : -1.0);
      check(p, in);
    }
}

// A row's bits are the same whichever rows stand beside it, and whatever tile that makes.
TEST_F(CudaGemmPlanesWgmmaTest, InvarianceOfARowsBits) {
  for (const DType weight : kWeightTypes) {
    const Product whole{.m = 700, .n = 264, .k = 1096, .weight = weight, .split = {0, 700, 700, 700, 700}};
    Operands in(whole);
    for (int64_t e = 1; e < 4; ++e)  // the same weights for every expert
      std::memcpy(in.w->at(e).data, in.w->at(0).data, in.w->at(0).bytes());
    const HostTensor expected = run(whole, in);
    for (const auto& split : {std::vector<double>{0, 1, 130, 131, 700}, {0, 200, 201, 601, 700}, {0, 0, 0, 0, 700}}) {
      Product other = whole;
      other.split = split;
      in.offsets.fill(split);
      EXPECT_TRUE(same_bits(run(other, in), expected)) << other.text();
    }
    for (const int64_t m : {1, 2, 3, 17, 63, 64, 65, 100, 128, 129, 200, 300}) {
      const Product few{.m = m, .n = 264, .k = 1096, .weight = weight};
      Operands part(few);
      std::memcpy(part.a->data, in.a->data, part.a->bytes());
      std::memcpy(part.w->data, in.w->data, part.w->bytes());
      EXPECT_TRUE(same_bits(run(few, part), expected->rows(0, m))) << m;
    }
  }
}

}  // namespace
}  // namespace lfm2
