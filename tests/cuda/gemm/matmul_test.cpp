// matmul on the GPU, compared with the CPU's operator. A row's bits must not depend on the other rows.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "cuda/gemm/summation.h"
#include "cuda/gpu.h"
#include "support/golden.h"

namespace lfm2 {
namespace {

using namespace test;

struct Case {
  int64_t m, n, k;
  DType act = DType::kF32, weight = DType::kF32, out = DType::kF32;
  bool bias = false;
  Write write = Write::kStore;

  std::string text() const {
    return fmt::format("m {} n {} k {} {} {} {} bias {} add {}", m, n, k, name(act), name(weight), name(out), bias,
                       write == Write::kAdd);
  }
};

struct Inputs {
  explicit Inputs(const Case& c)
      : a(c.act, {c.m, c.k}), w(c.weight, {c.n, c.k}), bias(c.weight, {c.n}), old(c.out, {c.m, c.n}) {
    a.fill_random(1);
    w.fill_random(2);
    bias.fill_random(3, 10.0f);
    old.fill_random(4, 10.0f);
  }
  HostTensor a, w, bias, old;
};

HostTensor run(const Case& c, const Inputs& in) {
  HostTensor out(c.out, {c.m, c.n});
  if (c.write == Write::kAdd && out.size() > 0) std::memcpy(out->data, in.old->data, out->bytes());
  const DeviceTensor a(in.a), w(in.w), bias(in.bias), device_out(out);
  on_gpu([&](Ops& ops) { ops.matmul(a, w, c.bias ? Tensor(bias) : Tensor(), device_out, c.write); });
  device_out.fetch(out);
  return out;
}

struct CudaMatmulTest : ::testing::Test {
  CpuReference cpu;

  void check(const Case& c) {
    SCOPED_TRACE(c.text());
    Inputs in(c);
    const HostTensor out = run(c, in);
    HostTensor expected(c.out, {c.m, c.n}), most(DType::kF32, {c.m, c.n}), wide(DType::kF32, {c.m, c.k});
    if (c.write == Write::kAdd && expected.size() > 0) std::memcpy(expected->data, in.old->data, expected->bytes());
    cpu.ops.matmul(in.a, in.w, c.bias ? in.bias.view() : Tensor{}, expected, c.write);
    wide.fill(magnitudes(in.a));  // the same product of absolute values gives the magnitude of the terms
    in.w.fill(magnitudes(in.w));
    in.bias.fill(magnitudes(in.bias));
    most.fill(magnitudes(in.old));
    cpu.ops.matmul(wide, in.w, c.bias ? in.bias.view() : Tensor{}, most, c.write);
    expect_close_to_cpu(out, expected, most.values(), summation_units(c.act, c.k));
  }
};

TEST_F(CudaMatmulTest, OddSizes) {
  for (const DType type : kFloatTypes)
    for (const int64_t k : {1, 7, 16, 64, 70, 1025, 2048})
      for (const int64_t m : {1, 3, 17, 65, 130})
        for (const int64_t n : {1, 8, 17, 65, 264}) check({m, n, k, type, type, type});
  for (const DType type : kFloatTypes) {
    check({5, 9, 9000, type, type, type});
    check({300, 600, 512, type, type, type});
  }
}

TEST_F(CudaMatmulTest, EveryTypeBiasAndAdd) {
  for (const auto& [act, weight] : {std::pair{DType::kF32, DType::kF32},
                                    {DType::kF32, DType::kBf16},
                                    {DType::kF32, DType::kF16},
                                    {DType::kBf16, DType::kBf16},
                                    {DType::kF16, DType::kF16}})
    for (const DType out : {act, DType::kF32})
      for (const bool bias : {false, true})
        for (const Write write : {Write::kStore, Write::kAdd})
          for (const int64_t n : {19, 32, 520})
            for (const int64_t k : {23, 1064}) check({7, n, k, act, weight, out, bias, write});
}

TEST_F(CudaMatmulTest, EmptyInputs) {
  for (const DType type : kFloatTypes) {
    check({0, 5, 7, type, type, type});
    check({3, 0, 7, type, type, type});
    check({3, 5, 0, type, type, type, true});
  }
}

TEST_F(CudaMatmulTest, AgreesWithTransformers) {
  const auto file = golden_dir() / "operators.h5";
  const auto a = read_array(file, "matmul/b_transposed/a"), w = read_array(file, "matmul/b_transposed/bt");
  const auto y = read_array(file, "matmul/b_transposed/y");
  const Case c{a.dim(0), w.dim(0), a.dim(1)};
  Inputs in(c);
  in.a.fill(a.values);
  in.w.fill(w.values);
  expect_close(run(c, in), y.values, std::vector<double>(y.values.size(), 70 * 0x1p-24 * 9));
}

TEST_F(CudaMatmulTest, RefusesShapesAndTypesThatDisagree) {
  const HostTensor host_a(DType::kF32, {3, 40}), host_w(DType::kF32, {9, 41}), host_out(DType::kF32, {3, 9});
  const HostTensor host_half(DType::kBf16, {3, 41});
  const DeviceTensor a(host_a), w(host_w), out(host_out), half(host_half);
  EXPECT_THROW(on_gpu([&](Ops& ops) { ops.matmul(a, w, {}, out, Write::kStore); }), Error);
  EXPECT_THROW(on_gpu([&](Ops& ops) { ops.matmul(half, w, {}, out, Write::kStore); }), Error);
}

// Tests the shapes of the model (in_proj, out_proj, qkv, router, dense, head) and odd ones. Every m must give the first
// m rows of the whole.
TEST_F(CudaMatmulTest, InvarianceOfARowsBits) {
  constexpr int64_t kRows = 1000;
  struct Product {
    int64_t n, k;
    DType act, weight, out;
    bool bias;
    Write write;
  };
  const DType f32 = DType::kF32, bf16 = DType::kBf16, f16 = DType::kF16;
  for (const Product& p : {Product{6144, 2048, bf16, bf16, bf16, false, Write::kStore},
                           {2048, 2048, bf16, bf16, bf16, false, Write::kAdd},
                           {3072, 2048, f16, f16, f16, false, Write::kStore},
                           {32, 2048, bf16, bf16, f32, false, Write::kStore},
                           {2048, 2048, bf16, bf16, bf16, true, Write::kStore},
                           {14336, 512, bf16, bf16, bf16, false, Write::kStore},
                           {65536, 256, bf16, bf16, f32, false, Write::kStore},
                           {2048, 7168, bf16, bf16, bf16, false, Write::kAdd},
                           {2048, 2048, f32, f32, f32, false, Write::kAdd},
                           {32, 2048, f32, f32, f32, false, Write::kStore},
                           {192, 64, f32, f32, f32, true, Write::kStore},
                           {192, 64, bf16, bf16, bf16, true, Write::kStore},
                           {72, 520, f32, bf16, f32, false, Write::kStore},
                           {73, 131, bf16, bf16, bf16, true, Write::kAdd}}) {
    const Case whole{kRows, p.n, p.k, p.act, p.weight, p.out, p.bias, p.write};
    SCOPED_TRACE(whole.text());
    const Inputs in(whole);
    const HostTensor expected = run(whole, in);
    const DeviceTensor a(in.a), w(in.w), bias(in.bias), old(in.old);
    const HostTensor again(p.out, {kRows, p.n});
    std::vector<std::pair<int64_t, int64_t>> pieces;  // (first row, number of rows)
    for (int64_t m = 1; m <= 300; m += p.n > 10000 ? 37 : 1) pieces.push_back({0, m});
    for (const auto& piece :
         {std::pair<int64_t, int64_t>{0, 512}, {0, kRows}, {999, 1}, {500, 33}, {37, 128}, {300, 700}})
      pieces.push_back(piece);
    for (const auto& [first, m] : pieces) {
      HostTensor part(p.out, {m, p.n});
      if (p.write == Write::kAdd) std::memcpy(part->data, in.old->rows(first, m).data, part->bytes());
      const DeviceTensor out(part);
      on_gpu([&](Ops& ops) { ops.matmul(a->rows(first, m), w, p.bias ? Tensor(bias) : Tensor(), out, p.write); });
      out.fetch(part);
      ASSERT_TRUE(same_bits(part, expected->rows(first, m))) << "rows " << first << " + " << m;
    }
  }
}

}  // namespace
}  // namespace lfm2
