// Which calls of norm_matmul take the one kernel of both operators: it leaves the normed rows as they were.
#include <gtest/gtest.h>

#include "cuda/common/hopper_test.h"
#include "cuda/fused/operator_scratch.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaNormMatmulChoiceTest : HopperTest {
  struct Case {
    int64_t m = 1, n = 40, k = 64;
    DType act = DType::kBf16, norm = act, out = act;
  };

  static bool takes_one_kernel(const Case& c) {
    HostTensor a(c.act, {c.m, c.k}), scale(c.norm, {c.k}), w(c.act, {c.n, c.k});
    a.fill_random(1);
    scale.fill_random(2);
    w.fill_random(3);
    const DeviceTensor x(a), weight(scale), matrix(w), out(HostTensor(c.out, {c.m, c.n}));
    const OperatorScratch normed(c.act, c.m, c.k);
    on_gpu([&](Ops& ops) { ops.norm_matmul(x, weight, 1e-5f, matrix, {}, normed, out); });
    return normed.is_untouched();
  }
};

TEST_F(CudaNormMatmulChoiceTest, IsTakenByFewRows) {
  for (const DType act : {DType::kBf16, DType::kF16})
    for (const int64_t m : {1, 2, 8}) EXPECT_TRUE(takes_one_kernel({.m = m, .k = 2048, .act = act}));
}

TEST_F(CudaNormMatmulChoiceTest, IsNotTakenByOthers) {
  EXPECT_FALSE(takes_one_kernel({.m = 9}));
  EXPECT_FALSE(takes_one_kernel({.n = 36}));
  EXPECT_FALSE(takes_one_kernel({.k = 36}));
  EXPECT_FALSE(takes_one_kernel({.k = 2056}));
  EXPECT_FALSE(takes_one_kernel({.act = DType::kF32}));
  EXPECT_FALSE(takes_one_kernel({.norm = DType::kF32}));
  EXPECT_FALSE(takes_one_kernel({.out = DType::kF32}));
}

}  // namespace
}  // namespace lfm2
