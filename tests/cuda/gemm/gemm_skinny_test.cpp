// The skinny product, called by its launcher, gives the bits of launch_gemm_wgmma, which other tests compare with
// fp64.
#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "cuda/common/hopper_test.h"
#include "cuda/gemm/product.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaGemmSkinnyTest : HopperTest {
  void check(const Product& p) { check(p, Operands(p, 2 / std::sqrt(static_cast<float>(p.k)))); }
  void check(const Product& p, const Operands& in) {
    SCOPED_TRACE(p.text());
    const HostTensor expected =
        run(p, in, [&](const GemmArgs& args) { launch_gemm_wgmma(nullptr, args, p.act, p.out); });
    EXPECT_TRUE(same_bits(run(p, in, [&](const GemmArgs& args) { launch_gemm_skinny(nullptr, args, p.act, p.out); }),
                          expected));
  }
};

TEST_F(CudaGemmSkinnyTest, EveryEpilogueAndEdge) {
  for (const DType act : {DType::kBf16, DType::kF16})
    for (const int64_t m : {1, 2, 7, 8, 9, 15, 16, 17, 33})
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{8, 8},
                                 {16, 24},
                                 {40, 72},
                                 {272, 136},
                                 {200, 192},
                                 {200, 320},
                                 {200, 576},
                                 {200, 1792}}) {
        for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kAdd})
          for (const DType out : {act, DType::kF32}) check(half_product(m, n, k, act, out, epilogue));
        if (n % 16 == 0) check(half_product(m, n, k, act, act, Epilogue::kSwiglu));
      }
}

// Tests rows of a that do not fit into shared memory, and more tiles than warps.
TEST_F(CudaGemmSkinnyTest, LargeMatrices) {
  for (const int64_t m : {1, 8, 13}) {
    check(half_product(m, 256, 7168, DType::kBf16, DType::kBf16, Epilogue::kAdd));
    check(half_product(m, 40000, 136, DType::kBf16, DType::kF32));
  }
}

TEST_F(CudaGemmSkinnyTest, Bias) {
  for (const DType bias : kFloatTypes)
    for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kAdd})
      for (const DType out : {DType::kBf16, DType::kF32})
        check(half_product(7, 264, 136, DType::kBf16, out, epilogue, bias));
}

TEST_F(CudaGemmSkinnyTest, EverySplit) {
  for (const std::vector<double>& split : {std::vector<double>{0, 3, 3, 33, 38, 39, 60},
                                           {0, 0, 0, 16},
                                           {0, 64, 64, 64},
                                           {0, 8, 16, 17},
                                           {0, 1, 2, 3, 4},
                                           {0, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 3, 3, 3, 4, 4}})
    for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kAdd, Epilogue::kSwiglu})
      for (const int64_t k : {24, 136, 320, 1792})
        check(half_product(static_cast<int64_t>(split.back()), 272, k, DType::kBf16, DType::kBf16, epilogue,
                           DType::kI32, split));
}

TEST_F(CudaGemmSkinnyTest, ManyGroups) {
  for (const int period : {7, 33, 500}) {
    std::vector<double> split = {0};
    for (int group = 0; group < 1024; ++group) split.push_back(split.back() + (group % period == 6 ? group % 5 : 0));
    check(half_product(static_cast<int64_t>(split.back()), 48, 72, DType::kBf16, DType::kBf16, Epilogue::kSwiglu,
                       DType::kI32, split));
  }
}

TEST_F(CudaGemmSkinnyTest, NothingToDo) {
  check(half_product(0, 16, 64));
  check(half_product(0, 16, 64, DType::kBf16, DType::kBf16, Epilogue::kSwiglu, DType::kI32, {0, 0, 0}));
}

TEST_F(CudaGemmSkinnyTest, InfinitiesAndNansStayInTheirRows) {
  for (const int64_t k : {64, 72}) {
    const Product p = half_product(5, 16, k);
    Operands in(p, 1);
    const auto at = [&](int64_t row, int64_t column) { return static_cast<size_t>(row * k + column); };
    in.w.fill(1);
    in.a.fill(1);
    in.a.set(at(0, 5), INFINITY);
    in.a.set(at(1, 7), -INFINITY);
    in.a.set(at(2, 9), NAN);
    in.a.set(at(4, k - 1), INFINITY);
    check(p, in);
  }
}

}  // namespace
}  // namespace lfm2
