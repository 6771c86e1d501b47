// route on the GPU, compared with the CPU's operator.
#include <gtest/gtest.h>

#include <cmath>

#include "cuda/experts/test_routing.h"
#include "cuda/gpu.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaRouteTest : ::testing::Test {
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
};

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

TEST_F(CudaRouteTest, NoTokens) {
  const HostTensor logits(DType::kF32, {0, 4});
  const TestRouting r(0, 2, 4);
  route_on_gpu(logits, nullptr, {2, true, 1.0f}, r);
}

}  // namespace
}  // namespace lfm2
