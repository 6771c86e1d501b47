// The operators grouped_matmul, matmul_swiglu and grouped_swiglu of the CPU backend, compared with their
// specification and with matmul for each expert.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/error.h"
#include "support/cpu_gemm_support.h"

namespace lfm2 {
namespace {

using namespace test;

TEST(GroupedMatmulTest, EveryTypeAndSplit) { check_grouped_matmul(AllCpus().all); }

TEST(GroupedMatmulTest, HasTheBitsOfMatmulExpertByExpert) {
  const int64_t experts = 5, n = 70, k = 1100;
  ThreadPool pool(3);
  for (const Simd* simd : available_simd()) {
    CpuOps ops(pool, *simd);
    for (const DType act : kFloatTypes) {
      HostTensor a(act, {151, k}), w(DType::kBf16, {experts, n, k}), offsets(DType::kI32, {experts + 1});
      a.fill_random(5);
      w.fill_random(6);
      for (const auto& split : kSplits) {
        offsets.fill(split);
        const auto all = static_cast<int64_t>(split.back());
        HostTensor out(act, {all, n}), expected(act, {all, n});
        ops.grouped_matmul(a->rows(0, all), w, offsets, out);
        for (int64_t e = 0; e < experts; ++e) {
          const auto first = static_cast<int64_t>(split[static_cast<size_t>(e)]);
          const int64_t rows = static_cast<int64_t>(split[static_cast<size_t>(e + 1)]) - first;
          ops.matmul(a->rows(first, rows), w->at(e), {}, expected->rows(first, rows), Write::kStore);
        }
        EXPECT_TRUE(same_bits(out, expected)) << simd->name << " " << name(act);
      }
    }
  }
}

// The row of w that holds column c of gate (or up), in the layout that gate_up.h describes.
int64_t gate_row(int64_t c, bool up) {
  return c / kGateUpBlock * 2 * kGateUpBlock + c % kGateUpBlock + (up ? kGateUpBlock : 0);
}

TEST(MatmulSwigluTest, EveryTypeAndOddSizes) { check_matmul_swiglu(AllCpus().all); }

TEST(MatmulSwigluTest, IsTheProductsSiluTimesUp) {
  for (const Simd* simd : available_simd())
    for (const DType act : kFloatTypes)
      for (const int64_t ffn : {8, 16, 104, 304})
        for (const int64_t m : {1, 35}) {
          const MatmulCase c{m, 2 * ffn, 300, act, DType::kBf16};
          SCOPED_TRACE(fmt::format("{} {}", simd->name, c.text()));
          const MatmulInputs in(c);
          ThreadPool pool(3);
          CpuOps ops(pool, *simd);
          const HostTensor sums = run(*simd, 1, {m, 2 * ffn, 300, act, DType::kBf16, DType::kF32}, in);
          HostTensor out(act, {m, ffn});
          ops.matmul_swiglu(in.a, in.w, out);
          std::vector<double> expected, tolerance;
          for (int64_t r = 0; r < m; ++r)
            for (int64_t i = 0; i < ffn; ++i) {
              const auto at = [&](bool up) { return sums.get(static_cast<size_t>(r * 2 * ffn + gate_row(i, up))); };
              expected.push_back(at(false) / (1 + std::exp(-at(false))) * at(true));
              tolerance.push_back(6 * 0x1p-24 * std::fabs(expected.back()) + store_error(act, expected.back()));
            }
          expect_close(out, expected, tolerance);
        }
}

TEST(GroupedSwigluTest, EveryTypeAndSplit) { check_grouped_swiglu(AllCpus().all); }

TEST(GroupedSwigluTest, HasTheBitsOfMatmulSwigluExpertByExpert) {
  const int64_t experts = 4, ffn = 72, k = 290, rows = 90;
  ThreadPool pool(3);
  for (const Simd* simd : available_simd()) {
    CpuOps ops(pool, *simd);
    for (const DType act : kFloatTypes) {
      HostTensor a(act, {rows, k}), w(DType::kBf16, {experts, 2 * ffn, k}), offsets(DType::kI32, {experts + 1});
      a.fill_random(5);
      w.fill_random(6);
      offsets.fill({0, 1, 1, 70, 90});
      HostTensor out(act, {rows, ffn}), expected(act, {rows, ffn});
      ops.grouped_swiglu(a, w, offsets, out);
      for (int64_t e = 0; e < experts; ++e) {
        const auto first = static_cast<int64_t>(offsets.get(static_cast<size_t>(e)));
        const int64_t count = static_cast<int64_t>(offsets.get(static_cast<size_t>(e + 1))) - first;
        ops.matmul_swiglu(a->rows(first, count), w->at(e), expected->rows(first, count));
      }
      EXPECT_TRUE(same_bits(out, expected)) << simd->name << " " << name(act);
    }
  }
}

TEST(GroupedMatmulTest, RefusesOffsetsOutsideTheRows) {
  ThreadPool pool(1);
  CpuOps ops(pool, *available_simd().front());
  HostTensor a(DType::kF32, {5, 8}), w(DType::kF32, {2, 4, 8}), offsets(DType::kI32, {3}), out(DType::kF32, {5, 4});
  a.fill(0.0);
  w.fill(0.0);
  for (const std::vector<double>& wrong : {std::vector<double>{0, 3, 6}, {-1, 3, 5}, {0, 4, 3}}) {
    offsets.fill(wrong);
    EXPECT_THROW(ops.grouped_matmul(a, w, offsets, out), Error);
  }
}

}  // namespace
}  // namespace lfm2
