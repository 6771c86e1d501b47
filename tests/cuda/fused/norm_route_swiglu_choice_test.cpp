// Which calls of norm_route_swiglu take the one kernel of both operators: it leaves the normed rows and the sorted ones
// as they were.
#include <gtest/gtest.h>

#include "cuda/experts/test_routing.h"
#include "cuda/sequences.h"
#include "kernels/cuda/cuda_backend.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaNormRouteSwigluChoiceTest : ::testing::Test {
  void SetUp() override {
    if (cuda_device_facts(0).compute_capability != 90) GTEST_SKIP() << "needs a Hopper GPU";
  }

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
    TestRouting host(c.tokens, c.top_k, c.experts);
    const HostTensor no_rows = nans(c.act, {c.tokens, c.hidden}), rows_after = nans(c.act, {c.tokens, c.hidden});
    const HostTensor not_sorted = nans(c.act, {rows, c.hidden}), sorted_after = nans(c.act, {rows, c.hidden});
    const DeviceTensor x(a), weight(scale), gate(router), matrices(w), normed(no_rows), sorted(not_sorted),
        ids(host.ids), weights(host.weights), sources(host.sources), places(host.rows), offsets(host.expert_offsets),
        out(HostTensor(c.act, {rows, ffn}));
    on_gpu([&](Ops& ops) {
      ops.norm_route_swiglu(x, weight, 1e-5f, gate, {}, {c.top_k, true, 1.0f}, matrices, normed,
                            {ids, weights, sources, places, offsets}, sorted, out);
    });
    normed.fetch(rows_after);
    sorted.fetch(sorted_after);
    return same_bits(rows_after, no_rows) && same_bits(sorted_after, not_sorted);
  }
};

TEST_F(CudaNormRouteSwigluChoiceTest, IsTakenByFewTokens) {
  for (const DType act : {DType::kBf16, DType::kF16})
    for (const int64_t tokens : {1, 2, 8}) {
      EXPECT_TRUE(takes_one_kernel({.tokens = tokens, .act = act}));
      EXPECT_TRUE(takes_one_kernel({.tokens = tokens, .hidden = 2048, .top_k = 2, .experts = 5, .act = act}));
    }
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
