// matmul and grouped_matmul of the GPU: against the CPU's operators, and the independence of each row's bits.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>

#include "cuda/planes_check.h"
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

// What two summations of k products may differ by, in units of fp32 rounding of the sum of their absolute values.
// Tensor cores cut off instead of rounding: every step of 16 may lose a unit in the same direction. A chain of fused
// multiply-adds rounds at each of k steps in either direction: four standard deviations.
double summation_units(DType act, int64_t k) {
  const auto steps = static_cast<double>(k);
  return (act == DType::kF32 ? 4 * std::sqrt(steps) : 2 * steps / 16) + 16;
}

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
    wide.fill(magnitudes(in.a));  // the magnitude of the terms: the same product of absolute values
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

// The shapes of the model (in_proj, out_proj, qkv, router, dense, head) and odd ones; every m must give the first m
// rows of the whole.
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
    std::vector<std::pair<int64_t, int64_t>> pieces;  // first row, rows
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

// The mma.sync version of the exact fp32 product, which other GPUs choose, by its launcher.
struct CudaGemmPlanesTest : ::testing::Test {
  static void launch(const GemmArgs& args) { launch_gemm_planes(nullptr, args); }
  static void check(const Product& p) { check_planes(p, launch); }
};

TEST_F(CudaGemmPlanesTest, EveryEpilogueSplitAndEdge) {
  for (const int64_t k : {8, 72, 264})
    for (const int64_t m : {1, 64, 65, 130})
      for (const int64_t n : {1, 19, 40, 136}) check(fp32_product(m, n, k, DType::kBf16));
  for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kAdd, Epilogue::kSwiglu})
    for (const auto& split : {std::vector<double>{0, 3, 3, 10, 150, 151}, {0, 0, 0, 151, 151, 151}})
      for (const int64_t k : {0, 136})
        check(fp32_product(151, 144, k, DType::kBf16, epilogue, bias_before(epilogue), split));
}

TEST_F(CudaGemmPlanesTest, LosesNoMoreThanPlainFp32) {
  for (const Kind& kind : kUsualKinds) expect_no_more_loss_than_plain_fp32(kind, DType::kBf16, launch);
  for (const Kind& kind : kDenormalKinds) expect_no_more_loss_than_plain_fp32(kind, DType::kBf16, launch);
}

TEST_F(CudaGemmPlanesTest, DenormalsInEveryEpilogue) { check_denormals_in_epilogues(DType::kBf16, launch); }

TEST_F(CudaGemmPlanesTest, RowsDoNotFeelDenormalNeighbours) {
  expect_rows_do_not_feel_denormal_neighbours(DType::kBf16, launch);
}

TEST_F(CudaGemmPlanesTest, PassesInfinitiesAndNansThrough) { check_infinities_and_nans(DType::kBf16, launch); }

struct CudaGroupedMatmulTest : CudaMatmulTest {
  HostTensor grouped(const HostTensor& a, const HostTensor& w, const std::vector<double>& split) {
    HostTensor offsets(DType::kI32, {w->dim(0) + 1}), out(a->dtype, {a->dim(0), w->dim(1)});
    offsets.fill(split);
    const DeviceTensor device_a(a), device_w(w), device_offsets(offsets), device_out(out);
    on_gpu([&](Ops& ops) { ops.grouped_matmul(device_a, device_w, device_offsets, device_out); });
    device_out.fetch(out);
    return out;
  }
};

TEST_F(CudaGroupedMatmulTest, EveryTypeAndSplit) {
  const std::vector<std::vector<double>> splits = {{0, 3, 3, 10, 150, 151},
                                                   {0, 0, 0, 151, 151, 151},
                                                   {0, 151, 151, 151, 151, 151},
                                                   {0, 30, 60, 90, 120, 151},
                                                   {0, 0, 0, 0, 0, 151}};
  for (const auto& [act, weight] : {std::pair{DType::kF32, DType::kF32},
                                    {DType::kF32, DType::kBf16},
                                    {DType::kBf16, DType::kBf16},
                                    {DType::kF16, DType::kF16}})
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{70, 1100}, {264, 64}, {1, 9}}) {
      SCOPED_TRACE(fmt::format("{} {} n {} k {}", name(act), name(weight), n, k));
      HostTensor a(act, {151, k}), w(weight, {5, n, k});
      a.fill_random(5);
      w.fill_random(6);
      HostTensor wide(DType::kF32, {151, k}), all_w(weight, {5, n, k});
      wide.fill(magnitudes(a));
      all_w.fill(magnitudes(w));
      for (const auto& split : splits) {
        HostTensor offsets(DType::kI32, {6}), expected(act, {151, n}), most(DType::kF32, {151, n});
        offsets.fill(split);
        cpu.ops.grouped_matmul(a, w, offsets, expected);
        cpu.ops.grouped_matmul(wide, all_w, offsets, most);
        expect_close_to_cpu(grouped(a, w, split), expected, most.values(), summation_units(act, k));
      }
    }
}

TEST_F(CudaGroupedMatmulTest, ManyExperts) {
  for (const DType act : {DType::kF32, DType::kBf16}) {
    const int64_t experts = 70, n = 40, k = 72, rows = 70 * 69 / 2;
    HostTensor a(act, {rows, k}), w(act, {experts, n, k}), offsets(DType::kI32, {experts + 1});
    HostTensor expected(act, {rows, n}), most(DType::kF32, {rows, n}), wide(DType::kF32, {rows, k});
    std::vector<double> split;
    for (int64_t e = 0; e <= experts; ++e) split.push_back(static_cast<double>(e * (e - 1) / 2));  // e - 1 rows each
    split[0] = 0;
    offsets.fill(split);
    a.fill_random(5);
    w.fill_random(6);
    cpu.ops.grouped_matmul(a, w, offsets, expected);
    const HostTensor out = grouped(a, w, split);
    wide.fill(magnitudes(a));
    w.fill(magnitudes(w));
    cpu.ops.grouped_matmul(wide, w, offsets, most);
    expect_close_to_cpu(out, expected, most.values(), summation_units(act, k));
  }
}

TEST_F(CudaGroupedMatmulTest, NoRows) {
  HostTensor a(DType::kBf16, {0, 16}), w(DType::kBf16, {3, 8, 16});
  w.fill_random(1);
  grouped(a, w, {0, 0, 0, 0});
}

// A row's bits are the same whichever rows share its expert and whatever tile that makes.
TEST_F(CudaGroupedMatmulTest, InvarianceOfARowsBits) {
  const int64_t experts = 4, n = 320, k = 1792, rows = 700;
  for (const DType act : kFloatTypes) {
    HostTensor a(act, {rows, k}), w(act, {experts, n, k});
    a.fill_random(7);
    for (int64_t e = 0; e < experts; ++e) {  // the same weights for every expert
      HostTensor one(act, {n, k});
      one.fill_random(8);
      std::memcpy(w->at(e).data, one->data, one->bytes());
    }
    const HostTensor expected = grouped(a, w, {0, 700, 700, 700, 700});
    for (const auto& split : {std::vector<double>{0, 1, 130, 131, 700}, {0, 200, 201, 601, 700}, {0, 0, 0, 0, 700}})
      EXPECT_TRUE(same_bits(grouped(a, w, split), expected)) << name(act);
    HostTensor few(act, {90, k});
    std::memcpy(few->data, a->data, few->bytes());
    EXPECT_TRUE(same_bits(grouped(few, w, {0, 20, 21, 85, 90}), expected->rows(0, 90))) << name(act);
  }
}

}  // namespace
}  // namespace lfm2
