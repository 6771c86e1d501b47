// Which calls of matmul_combine_experts take the one kernel of both operators: it leaves y as it was.
#include <gtest/gtest.h>

#include "cuda/common/hopper_test.h"
#include "cuda/experts/device_routing.h"
#include "cuda/fused/operator_scratch.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaMatmulCombineExpertsChoiceTest : HopperTest {
  struct Case {
    int64_t tokens = 1, hidden = 40, k = 64, top_k = 4, experts = 32;
    DType act = DType::kBf16;
  };

  static bool takes_one_kernel(const Case& c) {
    const int64_t rows = c.tokens * c.top_k;
    TestRouting host(c.tokens, c.top_k, c.experts);
    for (size_t i = 0; i < at(rows); ++i) host.ids.set(i, static_cast<double>(i % at(c.experts)));
    host.weights.fill_random(1);
    HostTensor a(c.act, {rows, c.k}), w(c.act, {c.experts, c.hidden, c.k}), x(c.act, {c.tokens, c.hidden});
    a.fill_random(2);
    w.fill_random(3);
    x.fill_random(4);
    const DeviceTensor inner(a), down(w), residual(x);
    const DeviceRouting chosen(host);
    const OperatorScratch y(c.act, rows, c.hidden);
    on_gpu([&](Ops& ops) {
      ops.group_by_expert(chosen.routing);
      ops.matmul_combine_experts(inner, down, chosen.routing, y, residual);
    });
    return y.is_untouched();
  }
};

TEST_F(CudaMatmulCombineExpertsChoiceTest, IsTakenByFewTokens) {
  for (const DType act : {DType::kBf16, DType::kF16})
    for (const int64_t tokens : {1, 2, 3, 8}) EXPECT_TRUE(takes_one_kernel({.tokens = tokens, .act = act}));
}

TEST_F(CudaMatmulCombineExpertsChoiceTest, IsNotTakenByOthers) {
  EXPECT_FALSE(takes_one_kernel({.tokens = 9}));
  EXPECT_FALSE(takes_one_kernel({.top_k = 5}));
  EXPECT_FALSE(takes_one_kernel({.experts = 33}));
  EXPECT_FALSE(takes_one_kernel({.hidden = 36}));
  EXPECT_FALSE(takes_one_kernel({.k = 36}));
  EXPECT_FALSE(takes_one_kernel({.act = DType::kF32}));
}

}  // namespace
}  // namespace lfm2
