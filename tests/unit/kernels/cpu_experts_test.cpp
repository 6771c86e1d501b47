// The operators route, group_by_expert, norm_route_swiglu, combine_experts and matmul_combine_experts of the CPU
// backend.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "kernels/cpu/cpu_ops.h"
#include "support/host_tensor.h"

namespace lfm2 {
namespace {

using test::HostTensor;

struct TestRouting {
  TestRouting(int64_t tokens, int64_t top_k, int64_t experts)
      : ids(DType::kI32, {tokens, top_k}),
        weights(DType::kF32, {tokens, top_k}),
        sources(DType::kI32, {tokens * top_k}),
        rows(DType::kI32, {tokens, top_k}),
        expert_offsets(DType::kI32, {experts + 1}),
        routing{ids, weights, sources, rows, expert_offsets} {}
  HostTensor ids, weights, sources, rows, expert_offsets;
  Routing routing;
};

struct ExpertsFixture : ::testing::Test {
  ThreadPool pool{2};
  CpuOps ops{pool, *available_simd().front()};
};
using RouteTest = ExpertsFixture;
using GroupByExpertTest = ExpertsFixture;
using CombineExpertsTest = ExpertsFixture;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

TEST_F(RouteTest, AgreesWithASortByScore) {
  const int64_t tokens = 200, experts = 32, top_k = 4;
  HostTensor logits(DType::kF32, {tokens, experts}), bias(DType::kF32, {experts});
  logits.fill_random(1, 2.0f);
  bias.fill_random(2, 0.3f);
  for (const bool biased : {false, true})
    for (const bool normalize : {false, true}) {
      TestRouting r(tokens, top_k, experts);
      ops.route(logits, biased ? bias.view() : Tensor{}, {top_k, normalize, 2.5f}, r.routing);
      std::vector<double> expected, tolerance;
      for (size_t t = 0; t < static_cast<size_t>(tokens); ++t) {
        const auto p = [&](size_t e) { return sigmoid(logits.get(t * 32 + e)); };
        const auto score = [&](size_t e) { return p(e) + (biased ? bias.get(e) : 0); };
        std::vector<size_t> order(32);
        std::iota(order.begin(), order.end(), size_t{0});
        std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return score(a) > score(b); });
        double sum = 1e-6;
        for (size_t j = 0; j < 4; ++j) {
          const auto chosen = static_cast<size_t>(r.ids.get(t * 4 + j));
          // The expert must be the same, unless rounding decides between the two.
          ASSERT_NEAR(score(chosen), score(order[j]), 3 * 0x1p-24 * (1 + std::fabs(score(chosen))))
              << "token " << t << ", " << j;
          sum += p(chosen);
        }
        for (size_t j = 0; j < 4; ++j) {
          const double weight = p(static_cast<size_t>(r.ids.get(t * 4 + j))) / (normalize ? sum : 1) * 2.5;
          expected.push_back(weight);
          tolerance.push_back(12 * 0x1p-24 * weight);
        }
      }
      test::expect_close(r.weights, expected, tolerance);
    }
}

TEST_F(RouteTest, TheBiasChoosesButDoesNotWeigh) {
  HostTensor logits(DType::kF32, {1, 4}), bias(DType::kF32, {4});
  logits.fill({0, 3, 0, 1});
  bias.fill({5, 0, 0, 0});
  TestRouting r(1, 2, 4);
  ops.route(logits, bias, {2, false, 1.0f}, r.routing);
  EXPECT_EQ(r.ids.values(), (std::vector<double>{0, 1}));
  EXPECT_EQ(r.weights.get(0), 0.5);
}

TEST_F(RouteTest, TiesGoToTheLowerId) {
  HostTensor logits(DType::kF32, {2, 5});
  logits.fill({1, 2, 2, 1, 2, 0, 0, 0, 0, 0});
  TestRouting r(2, 4, 5);
  ops.route(logits, {}, {4, false, 1.0f}, r.routing);
  EXPECT_EQ(r.ids.values(), (std::vector<double>{1, 2, 4, 0, 0, 1, 2, 3}));
}

TEST_F(RouteTest, NanAndInfinityGiveDistinctValidIds) {
  HostTensor logits(DType::kF32, {4, 3});
  logits.fill({NAN, 1, NAN, NAN, NAN, NAN, -HUGE_VAL, HUGE_VAL, NAN, -HUGE_VAL, -HUGE_VAL, -HUGE_VAL});
  TestRouting r(4, 3, 3);
  ops.route(logits, {}, {3, true, 1.0f}, r.routing);
  EXPECT_EQ(r.ids.values(), (std::vector<double>{1, 0, 2, 0, 1, 2, 1, 0, 2, 0, 1, 2}));
  EXPECT_EQ(r.weights.get(9), 0);  // 0 / (0 + 1e-6)
}

void check_groups(CpuOps& ops, int64_t tokens, int64_t top_k, int64_t experts, const std::vector<double>& ids) {
  TestRouting r(tokens, top_k, experts);
  r.ids.fill(ids);
  ops.group_by_expert(r.routing);
  // A stable sort of the assignments by counting.
  std::vector<double> sources, rows(ids.size()), offsets = {0};
  for (int64_t e = 0; e < experts; ++e) {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] != static_cast<double>(e)) continue;
      rows[i] = static_cast<double>(sources.size());
      sources.push_back(static_cast<double>(static_cast<int64_t>(i) / top_k));
    }
    offsets.push_back(static_cast<double>(sources.size()));
  }
  EXPECT_EQ(r.sources.values(), sources);
  EXPECT_EQ(r.rows.values(), rows);
  EXPECT_EQ(r.expert_offsets.values(), offsets);
}

TEST_F(GroupByExpertTest, IsAStableSort) {
  check_groups(ops, 3, 2, 4, {3, 1, 1, 0, 3, 1});
  check_groups(ops, 0, 2, 4, {});
  check_groups(ops, 4, 1, 1, {0, 0, 0, 0});
  for (const double everyone : {0, 2, 4}) check_groups(ops, 7, 1, 5, std::vector<double>(7, everyone));
  std::mt19937 generator(1);
  std::vector<double> ids(300);
  for (double& id : ids) id = static_cast<double>(generator() % 32);
  check_groups(ops, 75, 4, 32, ids);
}

TEST_F(GroupByExpertTest, RefusesAnIdOutOfRange) {
  for (const double id : {-1.0, 4.0}) EXPECT_THROW(check_groups(ops, 1, 1, 4, {id}), Error);
}

TEST_F(CombineExpertsTest, AddsTheWeightedRowsToTheResidual) {
  const int64_t tokens = 9, top_k = 3, hidden = 45;
  for (const DType act : {DType::kF32, DType::kBf16, DType::kF16}) {
    TestRouting r(tokens, top_k, 8);
    HostTensor y(act, {tokens * top_k, hidden}), residual(act, {tokens, hidden});
    y.fill_random(1);
    residual.fill_random(2, 4.0f);
    r.weights.fill_random(3);
    for (size_t i = 0; i < 27; ++i) r.rows.set(i, static_cast<double>(i * 10 % 27));
    std::vector<double> expected, tolerance;
    for (size_t t = 0; t < 9; ++t)
      for (size_t c = 0; c < 45; ++c) {
        double sum = residual.get(t * 45 + c), magnitude = std::fabs(sum);
        for (size_t j = 0; j < 3; ++j) {
          const double term = r.weights.get(t * 3 + j) * y.get(static_cast<size_t>(r.rows.get(t * 3 + j)) * 45 + c);
          sum += term;
          magnitude += std::fabs(term);
        }
        expected.push_back(sum);
        tolerance.push_back(5 * 0x1p-24 * magnitude + test::store_error(act, sum));
      }
    ops.combine_experts(y, r.routing, residual);
    test::expect_close(residual, expected, tolerance);
  }
}

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
