// route, group_by_expert and top_log_probs of the GPU: against the CPU's operators.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>

#include "cuda/gpu.h"
#include "support/golden.h"

namespace lfm2 {
namespace {

using namespace test;

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
  CpuReference cpu;

  void route_on_gpu(const HostTensor& logits, const HostTensor* bias, RouterRule rule, const TestRouting& result) {
    const DeviceTensor in(logits), ids(result.ids), weights(result.weights);
    std::unique_ptr<DeviceTensor> device_bias;
    if (bias != nullptr) device_bias = std::make_unique<DeviceTensor>(*bias);
    on_gpu([&](Ops& ops) {
      ops.route(in, device_bias ? Tensor(*device_bias) : Tensor(), rule,
                {.ids = ids, .weights = weights, .sources = {}, .rows = {}, .expert_offsets = {}});
    });
    ids.fetch(result.ids);
    weights.fetch(result.weights);
  }

  void check_groups(int64_t tokens, int64_t top_k, int64_t experts, const std::vector<double>& choices) {
    SCOPED_TRACE(fmt::format("{} tokens, {} of {} experts", tokens, top_k, experts));
    TestRouting expected(tokens, top_k, experts), result(tokens, top_k, experts);
    expected.ids.fill(choices);
    cpu.ops.group_by_expert(expected.routing);
    const DeviceTensor ids(expected.ids), sources(result.sources), rows(result.rows), offsets(result.expert_offsets);
    on_gpu([&](Ops& ops) {
      ops.group_by_expert({.ids = ids, .weights = {}, .sources = sources, .rows = rows, .expert_offsets = offsets});
    });
    sources.fetch(result.sources);
    rows.fetch(result.rows);
    offsets.fetch(result.expert_offsets);
    EXPECT_TRUE(same_bits(result.sources, expected.sources));
    EXPECT_TRUE(same_bits(result.rows, expected.rows));
    EXPECT_TRUE(same_bits(result.expert_offsets, expected.expert_offsets));
  }
};
using CudaRouteTest = ExpertsFixture;
using CudaGroupByExpertTest = ExpertsFixture;
using CudaTopLogProbsTest = ExpertsFixture;

TEST_F(CudaRouteTest, ChoosesAsTheCpuWhereTheGapIsAboveRounding) {
  for (const int64_t experts : {5, 32, 33, 200}) {
    const int64_t tokens = 203, top_k = 4;
    HostTensor logits(DType::kF32, {tokens, experts}), bias(DType::kF32, {experts});
    logits.fill_random(1, 2.0f);
    bias.fill_random(2, 0.3f);
    for (const bool biased : {false, true})
      for (const bool normalize : {false, true}) {
        TestRouting expected(tokens, top_k, experts), result(tokens, top_k, experts);
        const RouterRule rule{top_k, normalize, 2.5f};
        cpu.ops.route(logits, biased ? bias.view() : Tensor{}, rule, expected.routing);
        route_on_gpu(logits, biased ? &bias : nullptr, rule, result);
        int compared = 0;
        for (size_t t = 0; t < static_cast<size_t>(tokens); ++t) {
          const auto width = static_cast<size_t>(experts);
          const auto score = [&](size_t e) {
            return 1 / (1 + std::exp(-logits.get(t * width + e))) + (biased ? bias.get(e) : 0);
          };
          bool near_tie = false;
          for (size_t j = 0; j < 4; ++j)
            for (size_t e = 0; e < width; ++e) {
              const auto chosen = static_cast<size_t>(expected.ids.get(t * 4 + j));
              if (e != chosen && std::fabs(score(e) - score(chosen)) < 0x1p-20) near_tie = true;
            }
          if (near_tie) continue;
          ++compared;
          for (size_t i = t * 4; i < t * 4 + 4; ++i) {
            ASSERT_EQ(result.ids.get(i), expected.ids.get(i)) << "token " << t;
            ASSERT_NEAR(result.weights.get(i), expected.weights.get(i), 16 * 0x1p-24 * expected.weights.get(i));
          }
        }
        EXPECT_GT(compared, 150);
      }
  }
}

TEST_F(CudaRouteTest, TiesGoToTheLowerIdAndTheBiasOnlyChooses) {
  HostTensor logits(DType::kF32, {2, 5}), bias(DType::kF32, {5});
  logits.fill({1, 2, 2, 1, 2, 0, 0, 0, 0, 0});
  TestRouting r(2, 4, 5);
  route_on_gpu(logits, nullptr, {4, false, 1.0f}, r);
  EXPECT_EQ(r.ids.values(), (std::vector<double>{1, 2, 4, 0, 0, 1, 2, 3}));
  bias.fill({5, 0, 0, 0, 0});
  logits.fill({0, 3, 0, 1, 0, 0, 3, 0, 1, 0});
  TestRouting biased(2, 2, 5);
  route_on_gpu(logits, &bias, {2, false, 1.0f}, biased);
  EXPECT_EQ(biased.ids.values(), (std::vector<double>{0, 1, 0, 1}));
  EXPECT_EQ(biased.weights.get(0), 0.5);
}

TEST_F(CudaRouteTest, NanAndInfinityGiveDistinctValidIds) {
  HostTensor logits(DType::kF32, {4, 3});
  logits.fill({NAN, 1, NAN, NAN, NAN, NAN, -HUGE_VAL, HUGE_VAL, NAN, -HUGE_VAL, -HUGE_VAL, -HUGE_VAL});
  TestRouting r(4, 3, 3);
  route_on_gpu(logits, nullptr, {3, true, 1.0f}, r);
  EXPECT_EQ(r.ids.values(), (std::vector<double>{1, 0, 2, 0, 1, 2, 1, 0, 2, 0, 1, 2}));
  EXPECT_EQ(r.weights.get(9), 0);  // 0 / (0 + 1e-6)
}

std::vector<double> random_choices(std::mt19937& generator, int64_t count, int64_t experts) {
  std::vector<double> choices(static_cast<size_t>(count));
  for (double& id : choices) id = static_cast<double>(generator() % static_cast<unsigned>(experts));
  return choices;
}

TEST_F(CudaGroupByExpertTest, IsTheCpusStableSort) {
  check_groups(3, 2, 4, {3, 1, 1, 0, 3, 1});
  check_groups(0, 2, 4, {});
  check_groups(4, 1, 1, {0, 0, 0, 0});
  for (const double everyone : {0, 2, 4}) check_groups(700, 1, 5, std::vector<double>(700, everyone));
  std::mt19937 generator(1);
  for (const auto& [tokens, top_k, experts] :
       {std::array<int64_t, 3>{75, 4, 32}, {513, 4, 32}, {2048, 4, 32}, {3001, 3, 100}, {1000, 8, 1024}})
    check_groups(tokens, top_k, experts, random_choices(generator, tokens * top_k, experts));
}

TEST_F(CudaGroupByExpertTest, ManyBlocks) {
  std::mt19937 generator(2);
  for (const int64_t tokens : {12345, 200000}) check_groups(tokens, 4, 32, random_choices(generator, tokens * 4, 32));
}

TEST_F(CudaRouteTest, NoTokensIsFineForEveryExpertOperator) {
  const HostTensor logits(DType::kF32, {0, 4});
  const TestRouting r(0, 2, 4);
  route_on_gpu(logits, nullptr, {2, true, 1.0f}, r);
}

void top_on_gpu(const HostTensor& logits, const HostTensor& ids, const HostTensor& log_probs) {
  const DeviceTensor in(logits), device_ids(ids), device_log_probs(log_probs);
  on_gpu([&](Ops& ops) { ops.top_log_probs(in, device_ids, device_log_probs); });
  device_ids.fetch(ids);
  device_log_probs.fetch(log_probs);
}

TEST_F(CudaTopLogProbsTest, AnyKAsTheCpu) {
  for (const bool coarse : {false, true})  // coarse: very many ties
    for (const auto& [rows, vocab] : {std::pair<int64_t, int64_t>{1, 1}, {3, 7}, {2, 1023}, {5, 65536}, {2, 50001}})
      for (const int64_t k : {int64_t{1}, int64_t{2}, int64_t{5}, int64_t{64}, int64_t{1000}, int64_t{3000}, vocab}) {
        if (k > vocab) continue;
        SCOPED_TRACE(fmt::format("{} of {}{}", k, vocab, coarse ? ", coarse" : ""));
        HostTensor logits(DType::kF32, {rows, vocab}), ids(DType::kI32, {rows, k}),
            expected_ids(DType::kI32, {rows, k});
        HostTensor log_probs(DType::kF32, {rows, k}), expected(DType::kF32, {rows, k});
        logits.fill_random(1, 5.0f);
        if (coarse)
          for (size_t i = 0; i < logits.size(); ++i) logits.set(i, std::round(logits.get(i) / 4));
        top_on_gpu(logits, ids, log_probs);
        cpu.ops.top_log_probs(logits, expected_ids, expected);
        ASSERT_TRUE(same_bits(ids, expected_ids));
        std::vector<double> tolerance;
        for (size_t i = 0; i < expected.size(); ++i)
          tolerance.push_back(0x1p-24 * (2 * std::fabs(expected.get(i)) + 16));  // the sum's relative error
        expect_close(log_probs, expected.values(), tolerance);
      }
}

TEST_F(CudaTopLogProbsTest, NanAndInfinityKeepTheIdsValid) {
  HostTensor logits(DType::kF32, {5, 3}), ids(DType::kI32, {5, 3}), log_probs(DType::kF32, {5, 3});
  logits.fill({NAN, 1, NAN, NAN, NAN, NAN, -HUGE_VAL, 0, -HUGE_VAL, 1, HUGE_VAL, 2, 0, -0.0, 0});
  top_on_gpu(logits, ids, log_probs);
  EXPECT_EQ(ids.values(), (std::vector<double>{1, 0, 2, 0, 1, 2, 1, 0, 2, 1, 2, 0, 0, 1, 2}));
  EXPECT_TRUE(std::isnan(log_probs.get(0)));
  EXPECT_EQ(log_probs.get(6), 0);
  EXPECT_EQ(log_probs.get(7), -HUGE_VAL);
}

}  // namespace
}  // namespace lfm2
