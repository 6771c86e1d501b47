// The operators route, group_by_expert, norm_route_swiglu, combine_experts and matmul_combine_experts of the CPU
// backend.
#include <gtest/gtest.h>

#include "kernels/cpu/cpu_ops.h"
#include "support/experts_cases.h"

namespace lfm2 {
namespace {

using test::HostTensor;
using test::TestRouting;

struct ExpertsFixture : ::testing::Test {
  ThreadPool pool{2};
  CpuOps ops{pool, *available_simd().front()};
  test::CpuUnderTest cpu{*available_simd().front()};
};
using RouteTest = ExpertsFixture;
using GroupByExpertTest = ExpertsFixture;
using CombineExpertsTest = ExpertsFixture;

TEST_F(RouteTest, AgreesWithASortByScore) { test::check_route(cpu); }

TEST_F(RouteTest, TiesGoToTheLowerIdAndTheBiasOnlyChooses) { test::check_ties_of_route(cpu); }

TEST_F(RouteTest, NanAndInfinityGiveDistinctValidIds) { test::check_route_of_nans(cpu); }

TEST_F(GroupByExpertTest, IsAStableSort) { test::check_group_by_expert(cpu); }

TEST_F(GroupByExpertTest, RefusesAnIdOutOfRange) {
  for (const double id : {-1.0, 4.0}) EXPECT_THROW(test::check_groups(cpu, 1, 1, 4, {id}), Error);
}

TEST_F(CombineExpertsTest, AddsTheWeightedRowsToTheResidual) { test::check_combine_experts(cpu); }

TEST_F(CombineExpertsTest, BehindTheProductGivesTheBitsOfBoth) {
  const int64_t tokens = 5, top_k = 2, experts = 3, hidden = 18, k = 24;
  for (const DType act : {DType::kF32, DType::kBf16, DType::kF16}) {
    TestRouting r(tokens, top_k, experts);
    for (size_t i = 0; i < static_cast<size_t>(tokens * top_k); ++i) r.ids.set(i, static_cast<double>(i * i % 3));
    r.weights.fill_random(1);
    ops.group_by_expert(r.routing);
    HostTensor a(act, {tokens * top_k, k}), w(act, {experts, hidden, k}), y(act, {tokens * top_k, hidden});
    HostTensor apart(act, {tokens, hidden}), together(act, {tokens, hidden});
    a.fill_random(2);
    w.fill_random(3);
    apart.fill_random(4);
    together.fill_random(4);
    ops.grouped_matmul(a, w, r.expert_offsets, y);
    ops.combine_experts(y, r.routing, apart);
    ops.matmul_combine_experts(a, w, r.routing, y, together);
    EXPECT_TRUE(test::same_bits(together, apart)) << name(act);
  }
}

TEST_F(RouteTest, WithTheProductBehindItGivesTheBitsOfBoth) {
  const int64_t tokens = 5, top_k = 2, experts = 3, hidden = 24, ffn = 8;
  for (const DType act : {DType::kF32, DType::kBf16, DType::kF16}) {
    HostTensor x(act, {tokens, hidden}), norm(act, {hidden}), gate(act, {experts, hidden}),
        bias(DType::kF32, {experts});
    HostTensor w(act, {experts, 2 * ffn, hidden}), normed(act, {tokens, hidden}), sorted(act, {tokens * top_k, hidden});
    HostTensor apart(act, {tokens * top_k, ffn}), together(act, {tokens * top_k, ffn});
    x.fill_random(1);
    norm.fill_random(2);
    gate.fill_random(3);
    bias.fill_random(4);
    w.fill_random(5);
    const TestRouting first(tokens, top_k, experts), second(tokens, top_k, experts);
    const RouterRule rule{top_k, true, 1.0f};
    ops.norm_route(x, norm, 1e-5f, gate, bias, rule, normed, first.routing, sorted);
    ops.grouped_swiglu(sorted, w, first.expert_offsets, apart);
    ops.norm_route_swiglu(x, norm, 1e-5f, gate, bias, rule, w, normed, second.routing, sorted, together);
    EXPECT_TRUE(test::same_bits(together, apart)) << name(act);
    EXPECT_TRUE(test::same_bits(second.weights, first.weights)) << name(act);
    EXPECT_TRUE(test::same_bits(second.rows, first.rows)) << name(act);
  }
}

TEST_F(RouteTest, NoTokensIsFineForEveryExpertOperator) {
  TestRouting r(0, 2, 4);
  HostTensor logits(DType::kF32, {0, 4}), y(DType::kF32, {0, 6}), w(DType::kF32, {4, 6, 6}),
      residual(DType::kF32, {0, 6});
  ops.route(logits, {}, {2, true, 1.0f}, r.routing);
  ops.group_by_expert(r.routing);
  EXPECT_EQ(r.expert_offsets.values(), std::vector<double>(5, 0.0));
  ops.grouped_matmul(y, w, r.expert_offsets, y);
  ops.combine_experts(y, r.routing, residual);
  ops.matmul_combine_experts(y, w, r.routing, y, residual);
  HostTensor norm(DType::kF32, {6}), gate(DType::kF32, {4, 6}), gate_up(DType::kF32, {4, 2 * kGateUpBlock, 6}),
      product(DType::kF32, {0, kGateUpBlock});
  ops.norm_route_swiglu(y, norm, 1e-5f, gate, {}, {2, true, 1.0f}, gate_up, y, r.routing, y, product);
  EXPECT_EQ(r.expert_offsets.values(), std::vector<double>(5, 0.0));
}

}  // namespace
}  // namespace lfm2
