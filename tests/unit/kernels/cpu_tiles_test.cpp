// Weights that lie in tiles, compared bit by bit with the same weights in rows.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "support/cpu_gemm_support.h"

namespace lfm2 {
namespace {

using namespace test;

// The same weights as the device holds them.
struct Held {
  Held(CpuOps& ops, const HostTensor& rows, std::initializer_list<int64_t> dims)
      : copy(rows->dtype, dims), w(ops.prepacked(copy.view())) {
    std::memcpy(copy->data, rows->data, rows->bytes());
    if (w.tiled) ops.prepack(w);
  }
  HostTensor copy;
  Tensor w;
};

TEST(CpuTilesTest, WhichWeightsLieInThem) {
  ThreadPool pool(1);
  for (const Simd* simd : available_simd()) {
    CpuOps ops(pool, *simd);
    const auto tiled = [&](DType type, int64_t n, int64_t k) {
      return ops.prepacked(HostTensor(type, {n, k}).view()).tiled;
    };
    for (const DType type : {DType::kF32, DType::kBf16}) EXPECT_TRUE(tiled(type, 96, 320)) << simd->name;
    EXPECT_FALSE(tiled(DType::kF32, 97, 320)) << simd->name;
    EXPECT_FALSE(tiled(DType::kBf16, 96, 321)) << simd->name;
    const Tensor experts = HostTensor(DType::kBf16, {3, 64, 96}).view();
    EXPECT_TRUE(ops.prepacked(experts).tiled) << simd->name;
  }
}

TEST(CpuTilesTest, ProductsHaveTheBitsOfRows) {
  ThreadPool pool(3);
  for (const Simd* simd : available_simd())
    for (const DType act : kFloatTypes)
      for (const DType weight : kFloatTypes)
        for (const auto& [n, k] :
             std::vector<std::pair<int64_t, int64_t>>{{32, 32}, {320, 256}, {64, 1120}, {1056, 288}})
          for (const int64_t m : {1, 2, 3, 5, 7, 8, 9, 14, 33, 130}) {
            const MatmulCase c{m, n, k, act, weight, act, true, Write::kAdd};
            SCOPED_TRACE(fmt::format("{} {}", simd->name, c.text()));
            const MatmulInputs in(c);
            CpuOps ops(pool, *simd);
            const Held held(ops, in.w, {n, k});
            HostTensor out(act, {m, n});
            std::memcpy(out->data, in.old->data, out->bytes());
            ops.matmul(in.a, held.w, in.bias, out, Write::kAdd);
            ASSERT_TRUE(same_bits(out, run(*simd, 1, c, in)));
          }
}

// Kernels may sum blocks of k with such numbers in another way (simd_amx.cpp), which reads the stored weights again.
TEST(CpuTilesTest, LargeAndTinyNumbersHaveTheBitsOfRows) {
  ThreadPool pool(2);
  const int64_t n = 96, k = 608;
  for (const Simd* simd : available_simd())
    for (const float factor : {0x1p32f, 0x1p-100f})
      for (const int64_t m : {1, 20, 130}) {
        SCOPED_TRACE(fmt::format("{} factor {} m {}", simd->name, factor, m));
        CpuOps ops(pool, *simd);
        HostTensor a(DType::kF32, {m, k}), w(DType::kF32, {n, k}), out(DType::kF32, {m, n}),
            expected(DType::kF32, {m, n});
        a.fill_random(8);
        w.fill_random(9);
        // In each half of a tile, and in each block of k, a row of such numbers.
        for (const int64_t row : {5, 20, 64, 95})
          for (int64_t i = 0; i < k; ++i) w.view().as<float>()[row * k + i] *= factor;
        const Held held(ops, w, {n, k});
        ASSERT_TRUE(held.w.tiled);
        ops.matmul(a, w, {}, expected, Write::kStore);
        ops.matmul(a, held.w, {}, out, Write::kStore);
        EXPECT_TRUE(same_bits(out, expected));
      }
}

TEST(CpuTilesTest, ExpertsHaveTheBitsOfRows) {
  const int64_t experts = 4, n = 96, k = 352;
  ThreadPool pool(2);
  for (const Simd* simd : available_simd()) {
    CpuOps ops(pool, *simd);
    for (const DType type : kFloatTypes)
      for (const std::vector<double>& split : {std::vector<double>{0, 1, 1, 8, 41}, {0, 1, 1, 2, 3}}) {
        const auto rows = static_cast<int64_t>(split.back());
        HostTensor a(type, {rows, k}), w(type, {experts, n, k}), offsets(DType::kI32, {experts + 1});
        a.fill_random(5);
        w.fill_random(6);
        offsets.fill(split);
        const Held held(ops, w, {experts, n, k});
        HostTensor out(type, {rows, n}), expected(type, {rows, n}), halves(type, {rows, n / 2}),
            expected_halves(type, {rows, n / 2});
        ops.grouped_matmul(a, w, offsets, expected);
        ops.grouped_matmul(a, held.w, offsets, out);
        EXPECT_TRUE(same_bits(out, expected)) << simd->name << " " << name(type) << ", " << rows << " rows";
        ops.grouped_swiglu(a, w, offsets, expected_halves);
        ops.grouped_swiglu(a, held.w, offsets, halves);
        EXPECT_TRUE(same_bits(halves, expected_halves)) << simd->name << " " << name(type) << ", " << rows << " rows";
      }
  }
}

TEST(CpuTilesTest, EmbedsTheirRows) {
  ThreadPool pool(2);
  for (const Simd* simd : available_simd()) {
    CpuOps ops(pool, *simd);
    for (const DType type : kFloatTypes)
      for (const DType act : kFloatTypes) {
        HostTensor table(type, {96, 64}), ids(DType::kI32, {5}), out(act, {5, 64}), expected(act, {5, 64});
        table.fill_random(7);
        ids.fill({95, 0, 31, 32, 63});
        const Held held(ops, table, {96, 64});
        ops.embed(ids, table, expected);
        ops.embed(ids, held.w, out);
        EXPECT_TRUE(same_bits(out, expected)) << simd->name << " " << name(type) << " " << name(act);
      }
  }
}

}  // namespace
}  // namespace lfm2
