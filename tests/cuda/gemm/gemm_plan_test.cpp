// Tests the rules that choose kernels. This needs no GPU.
#include "kernels/cuda/gemm/gemm_plan.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/cuda/cuda_backend.h"

namespace lfm2 {
namespace {

constexpr DType kF32 = DType::kF32, kBf16 = DType::kBf16, kF16 = DType::kF16;

TEST(GemmPlanTest, TakesTheTypesOfTheContract) {
  for (const DType weight : {kF32, kBf16, kF16})
    EXPECT_TRUE(gemm_supported({.act = kF32, .weight = weight, .out = kF32}));
  for (const DType act : {kBf16, kF16})
    for (const DType out : {act, kF32}) EXPECT_TRUE(gemm_supported({.act = act, .weight = act, .out = out}));
  EXPECT_FALSE(gemm_supported({.act = kBf16, .weight = kF32, .out = kBf16}));
  EXPECT_FALSE(gemm_supported({.act = kBf16, .weight = kF16, .out = kBf16}));
  EXPECT_FALSE(gemm_supported({.act = kF32, .weight = kF32, .out = kBf16}));
  EXPECT_FALSE(gemm_supported({.act = DType::kI32, .weight = DType::kI32, .out = DType::kI32}));
}

TEST(GemmPlanTest, RegularDenseProductsGoToCublas) {
  const GemmProblem regular{.act = kBf16, .weight = kBf16, .out = kBf16, .n = 2048, .k = 1792};
  EXPECT_EQ(choose_dense(regular), GemmPath::kCublasLt);
  EXPECT_EQ(choose_grouped(regular), GemmPath::kMma);
  GemmProblem odd = regular;
  odd.k = 1793;
  EXPECT_EQ(choose_dense(odd), GemmPath::kMma);
  odd = regular;
  odd.aligned = false;
  EXPECT_EQ(choose_dense(odd), GemmPath::kMma);
  odd = regular;
  odd.bias = true;
  odd.out = kF32;  // the bias would have another type than the output
  EXPECT_EQ(choose_dense(odd), GemmPath::kMma);
  odd = regular;
  odd.epilogue = Epilogue::kAdd;  // cuBLASLt would round twice
  EXPECT_EQ(choose_dense(odd), GemmPath::kMma);
  odd.out = kF32;
  EXPECT_EQ(choose_dense(odd), GemmPath::kCublasLt);
  EXPECT_EQ(choose_dense({.act = kF32, .weight = kF32, .out = kF32, .n = 8, .k = 8}), GemmPath::kCublasLt);
  const GemmProblem exact{.act = kF32, .weight = kBf16, .out = kF32, .n = 8, .k = 8};
  EXPECT_EQ(choose_dense(exact), GemmPath::kBf16x3);
  EXPECT_EQ(choose_grouped(exact), GemmPath::kBf16x3);
  odd = exact;
  odd.k = 9;
  EXPECT_EQ(choose_grouped(odd), GemmPath::kSimt);
  EXPECT_EQ(choose_grouped({.act = kF32, .weight = kF16, .out = kF32, .n = 8, .k = 8}), GemmPath::kSimt);
}

TEST(GemmPlanTest, HopperHasKernelsOfItsOwn) {
  const GemmProblem bf16{.act = kBf16, .weight = kBf16, .out = kBf16, .n = 2048, .k = 1792, .hopper = true};
  EXPECT_EQ(choose_grouped(bf16), GemmPath::kWgmma);
  EXPECT_EQ(choose_dense(bf16), GemmPath::kWgmma);
  GemmProblem other = bf16;
  other.k = 1796;
  EXPECT_EQ(choose_grouped(other), GemmPath::kMma);
  other = bf16;
  other.epilogue = Epilogue::kAdd;
  EXPECT_EQ(choose_dense(other), GemmPath::kWgmma);
  other.epilogue = Epilogue::kSwiglu;
  EXPECT_EQ(choose_dense(other), GemmPath::kWgmma);
  other.n = 2056;
  EXPECT_EQ(choose_grouped(other), GemmPath::kMma);
  for (const DType weight : {kF32, kBf16, kF16}) {
    const GemmPath own = weight == kF16 ? GemmPath::kSimt : GemmPath::kBf16x3Wgmma;
    GemmProblem fp32{.act = kF32, .weight = weight, .out = kF32, .n = 8, .k = 8, .hopper = true};
    EXPECT_EQ(choose_dense(fp32), own);
    EXPECT_EQ(choose_grouped(fp32), own);
    fp32.plain_fp32 = true;
    EXPECT_EQ(choose_grouped(fp32), GemmPath::kSimt);
    EXPECT_EQ(choose_dense(fp32), weight == kF32 ? GemmPath::kCublasLt : GemmPath::kSimt);
  }
}

// The number of row tiles for one split of the rows.
int64_t tiles_of(const std::vector<int64_t>& rows, int tile_rows) {
  int64_t tiles = 0;
  for (const int64_t count : rows) tiles += (count + tile_rows - 1) / tile_rows;
  return tiles;
}

TEST(GemmPlanTest, TheGridHoldsEverySplitAndNotMuchMore) {
  for (const int tile : {3, 64})
    for (int64_t rows = 0; rows <= 40; ++rows)
      for (int64_t first = 0; first <= rows; ++first)
        for (int64_t second = 0; first + second <= rows; ++second)
          ASSERT_GE(row_tile_bound(rows, 3, tile), tiles_of({first, second, rows - first - second}, tile));
  EXPECT_EQ(row_tile_bound(0, 32, 128), 0);
  EXPECT_EQ(row_tile_bound(1, 32, 128), 1);
  EXPECT_EQ(row_tile_bound(5, 32, 128), 5);    // five experts with one row each
  EXPECT_EQ(row_tile_bound(33, 32, 128), 32);  // 31 with one row, one with two
  EXPECT_EQ(row_tile_bound(1000, 1, 128), 8);  // dense
}

TEST(NoGpuTest, SaysSo) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "there is a GPU";
  try {
    make_cuda_backend(0);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUnavailable);
    EXPECT_NE(std::string(error.what()).find("no GPU"), std::string::npos);
  }
}

}  // namespace
}  // namespace lfm2
