// Which calls of norm_route_swiglu take the one kernel of both operators: it leaves the normed rows and the sorted ones
// as they were.
#include <gtest/gtest.h>

#include "cuda/common/hopper_test.h"
#include "cuda/experts/device_routing.h"
#include "cuda/fused/operator_scratch.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaNormRouteSwigluChoiceTest : HopperTest {
  struct Case {
    int64_t tokens = 1, hidden = 64, top_k = 4, experts = 32;
    DType act = DType::kBf16, norm = act, gate = act;
  };

  static bool takes_one_kernel(const Case& c) {
    const int64_t rows = c.tokens * c.top_k, ffn = 16;
    HostTensor a(c.act, {c.tokens, c.hidden}), scale(c.norm, {c.hidden}), router(c.gate, {c.experts, c.hidden});
    HostTensor w(c.act, {c.experts, 2 * ffn, c.hidden});
    a.fill_random(1);
    scale.fill_random(2);
    router.fill_random(3);
    w.fill_random(4);
    const DeviceTensor x(a), weight(scale), gate(router), matrices(w), out(HostTensor(c.act, {rows, ffn}));
    const DeviceRouting chosen(TestRouting(c.tokens, c.top_k, c.experts));
    const OperatorScratch normed(c.act, c.tokens, c.hidden), sorted(c.act, rows, c.hidden);
    on_gpu([&](Ops& ops) {
      ops.norm_route_swiglu(x, weight, 1e-5f, gate, {}, {c.top_k, true, 1.0f}, matrices, normed, chosen.routing, sorted,
                            out);
    });
    const bool no_rows = normed.is_untouched(), not_sorted = sorted.is_untouched();
    return no_rows && not_sorted;
  }
};

TEST_F(CudaNormRouteSwigluChoiceTest, IsTakenByFewTokens) {
  for (const DType act : {DType::kBf16, DType::kF16})
    for (const int64_t tokens : {1, 2, 8}) {
      EXPECT_TRUE(takes_one_kernel({.tokens = tokens, .act = act}));
      EXPECT_TRUE(takes_one_kernel({.tokens = tokens, .hidden = 2048, .top_k = 2, .experts = 5, .act = act}));
    }
}

// Together the tokens have up to 32 choices.
TEST_F(CudaNormRouteSwigluChoiceTest, IsTakenByAsManyChoicesAsAWarpHasLanes) {
  for (const auto& [tokens, top_k] : {std::pair<int64_t, int64_t>{1, 8}, {1, 32}, {5, 6}})
    EXPECT_TRUE(takes_one_kernel({.tokens = tokens, .top_k = top_k})) << tokens << " tokens, " << top_k << " choices";
  for (const auto& [tokens, top_k] : {std::pair<int64_t, int64_t>{2, 32}, {6, 6}})
    EXPECT_FALSE(takes_one_kernel({.tokens = tokens, .top_k = top_k})) << tokens << " tokens, " << top_k << " choices";
}

TEST_F(CudaNormRouteSwigluChoiceTest, IsNotTakenByOthers) {
  EXPECT_FALSE(takes_one_kernel({.tokens = 9, .top_k = 2}));
  EXPECT_FALSE(takes_one_kernel({.tokens = 8, .top_k = 5}));
  EXPECT_FALSE(takes_one_kernel({.experts = 33}));
  EXPECT_FALSE(takes_one_kernel({.hidden = 72}));
  EXPECT_FALSE(takes_one_kernel({.hidden = 2080}));
  EXPECT_FALSE(takes_one_kernel({.act = DType::kF32}));
  EXPECT_FALSE(takes_one_kernel({.norm = DType::kF32}));
  EXPECT_FALSE(takes_one_kernel({.gate = DType::kF32}));
}

}  // namespace
}  // namespace lfm2
