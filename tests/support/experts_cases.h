// Cases of route, group_by_expert and combine_experts, which the tests of both backends run.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <random>
#include <vector>

#include "support/index_cast.h"
#include "support/ops_under_test.h"
#include "support/test_routing.h"

namespace lfm2::test {

inline void route(OpsUnderTest& under, const HostTensor& logits, const HostTensor& bias, RouterRule rule,
                  const TestRouting& result) {
  under.run(
      [&](Ops& ops, const Tensor& in, const Tensor& offset, const Tensor& ids, const Tensor& weights) {
        ops.route(in, offset, rule, {ids, weights, {}, {}, {}});
      },
      logits, bias, result.ids, result.weights);
}

// Expects each token's experts in the order of the specification, or, where rounding decides between two of them,
// another one whose score is within gap(score) of that: two for each such pair, so in most cases none; and the weights
// of those that were chosen.
template <class Gap>
void expect_routed(const TestRouting& r, const HostTensor& logits, const HostTensor& bias, RouterRule rule,
                   const Gap& gap, double weight_units) {
  const int64_t experts = logits->dim(1);
  const reference::Scores expected = reference::route(logits, bias);
  int64_t others = 0, near_ties = 0;
  for (int64_t row = 0; row < logits->numel(); row += experts)
    for (int64_t i = 0; i < rule.top_k && i + 1 < experts; ++i) {
      const double score = expected.scores[at(row + expected.order[at(row + i)])];
      if (score - expected.scores[at(row + expected.order[at(row + i + 1)])] <= gap(score)) ++near_ties;
    }
  for (int64_t i = 0; i < r.ids->numel(); ++i) {
    const int64_t row = i / rule.top_k * experts, best = expected.order[at(row + i % rule.top_k)];
    const int32_t chosen = r.ids->as<int32_t>()[i];
    const double score = expected.scores[at(row + chosen)];
    ASSERT_NEAR(score, expected.scores[at(row + best)], gap(score))
        << "token " << i / rule.top_k << ", " << i % rule.top_k;
    if (chosen != best) ++others;
  }
  EXPECT_LE(others, 2 * near_ties);
  const std::vector<double> weights = reference::route_weights(logits, r.ids, rule);
  expect_close(r.weights, {weights, weights}, weight_units);
}

inline void check_route(OpsUnderTest& under) {
  const int64_t tokens = 203, top_k = 4;
  for (const int64_t experts : {5, 32, 33, 200})
    for (const bool biased : {false, true})
      for (const bool normalize : {false, true}) {
        SCOPED_TRACE(fmt::format("{} experts, biased {}, normalized {}", experts, biased, normalize));
        HostTensor logits(DType::kF32, {tokens, experts});
        HostTensor bias = biased ? HostTensor(DType::kF32, {experts}) : no_tensor();
        logits.fill_random(1, 2.0f);
        if (biased) bias.fill_random(2, 0.3f);
        const TestRouting r(tokens, top_k, experts);
        const RouterRule rule{top_k, normalize, 2.5f};
        route(under, logits, bias, rule, r);
        expect_routed(
            r, logits, bias, rule,
            [&](double score) { return under.units(3 * 0x1p-24 * (1 + std::fabs(score)), 0x1p-20); },
            under.units(12, 16));
      }
}

inline void check_ties_of_route(OpsUnderTest& under) {
  HostTensor logits(DType::kF32, {2, 5}), bias(DType::kF32, {5});
  logits.fill({1, 2, 2, 1, 2, 0, 0, 0, 0, 0});
  const TestRouting r(2, 4, 5), biased(2, 2, 5);
  route(under, logits, no_tensor(), {4, false, 1.0f}, r);
  EXPECT_EQ(r.ids.values(), (std::vector<double>{1, 2, 4, 0, 0, 1, 2, 3}));
  bias.fill({5, 0, 0, 0, 0});  // chooses, but does not weigh
  logits.fill({0, 3, 0, 1, 0, 0, 3, 0, 1, 0});
  route(under, logits, bias, {2, false, 1.0f}, biased);
  EXPECT_EQ(biased.ids.values(), (std::vector<double>{0, 1, 0, 1}));
  EXPECT_EQ(biased.weights.get(0), 0.5);
}

inline void check_route_of_nans(OpsUnderTest& under) {
  HostTensor logits(DType::kF32, {4, 3});
  logits.fill({NAN, 1, NAN, NAN, NAN, NAN, -HUGE_VAL, HUGE_VAL, NAN, -HUGE_VAL, -HUGE_VAL, -HUGE_VAL});
  const TestRouting r(4, 3, 3);
  route(under, logits, no_tensor(), {3, true, 1.0f}, r);
  EXPECT_EQ(r.ids.values(), (std::vector<double>{1, 0, 2, 0, 1, 2, 1, 0, 2, 0, 1, 2}));
  EXPECT_EQ(r.weights.get(9), 0);  // 0 / (0 + 1e-6)
}

inline void check_groups(OpsUnderTest& under, int64_t tokens, int64_t top_k, int64_t experts,
                         const std::vector<double>& ids) {
  SCOPED_TRACE(fmt::format("{} tokens, {} of {} experts", tokens, top_k, experts));
  TestRouting r(tokens, top_k, experts);
  r.ids.fill(ids);
  under.run(
      [](Ops& ops, const Tensor& chosen, const Tensor& sources, const Tensor& rows, const Tensor& offsets) {
        ops.group_by_expert({chosen, {}, sources, rows, offsets});
      },
      r.ids, r.sources, r.rows, r.expert_offsets);
  const reference::Groups expected = reference::group_by_expert(r.ids, experts);
  EXPECT_EQ(r.sources.values(), expected.sources);
  EXPECT_EQ(r.rows.values(), expected.rows);
  EXPECT_EQ(r.expert_offsets.values(), expected.expert_offsets);
}

inline void check_group_by_expert(OpsUnderTest& under) {
  check_groups(under, 3, 2, 4, {3, 1, 1, 0, 3, 1});
  check_groups(under, 0, 2, 4, {});
  check_groups(under, 4, 1, 1, {0, 0, 0, 0});
  for (const double everyone : {0, 2, 4}) check_groups(under, 700, 1, 5, std::vector<double>(700, everyone));
  std::mt19937 generator(1);
  for (const auto& [tokens, top_k, experts] : {std::array<int64_t, 3>{75, 4, 32},
                                               {513, 4, 32},
                                               {2048, 4, 32},
                                               {3001, 3, 100},
                                               {1000, 8, 1024},
                                               {12345, 4, 32},
                                               {200000, 4, 32}}) {
    std::vector<double> ids(at(tokens * top_k));
    for (double& id : ids) id = static_cast<double>(generator() % static_cast<unsigned>(experts));
    check_groups(under, tokens, top_k, experts, ids);
  }
}

inline void check_combine_experts(OpsUnderTest& under) {
  const int64_t tokens = 9, top_k = 3;
  for (const int64_t hidden : {1, 45, 64, 2048})
    for (const DType act : kFloatTypes) {
      SCOPED_TRACE(fmt::format("{} {}", name(act), hidden));
      TestRouting r(tokens, top_k, 8);
      HostTensor y(act, {tokens * top_k, hidden}), residual(act, {tokens, hidden});
      y.fill_random(1);
      residual.fill_random(2, 4.0f);
      r.weights.fill_random(3);
      for (size_t i = 0; i < 27; ++i) r.rows.set(i, static_cast<double>(i * 10 % 27));
      const auto expected = reference::combine_experts(y, r.routing, residual);
      under.run(
          [](Ops& ops, const Tensor& in, const Tensor& weights, const Tensor& rows, const Tensor& out) {
            ops.combine_experts(in, {{}, weights, {}, rows, {}}, out);
          },
          y, r.weights, r.rows, residual);
      expect_close(residual, expected, under.units(5, 10));
    }
}

}  // namespace lfm2::test
