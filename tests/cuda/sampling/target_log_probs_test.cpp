// target_log_probs on the GPU, compared with the CPU's operator.
#include <gtest/gtest.h>

#include <cmath>

#include "cuda/gpu.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaTargetLogProbsTest : ::testing::Test {
  CpuReference cpu;
};

void score_on_gpu(const HostTensor& logits, const HostTensor& targets, const HostTensor& log_probs,
                  const HostTensor& likeliest) {
  const DeviceTensor in(logits), device_targets(targets), device_log_probs(log_probs), device_likeliest(likeliest);
  on_gpu([&](Ops& ops) { ops.target_log_probs(in, device_targets, device_log_probs, device_likeliest); });
  device_log_probs.fetch(log_probs);
  device_likeliest.fetch(likeliest);
}

TEST_F(CudaTargetLogProbsTest, EveryTargetAsTheCpu) {
  for (const bool coarse : {false, true})  // coarse logits have very many ties
    for (const auto& [rows, vocab] :
         {std::pair<int64_t, int64_t>{1, 1}, {7, 7}, {64, 1023}, {130, 65536}, {33, 50001}}) {
      SCOPED_TRACE(fmt::format("{} x {}{}", rows, vocab, coarse ? ", coarse" : ""));
      HostTensor logits(DType::kF32, {rows, vocab}), targets(DType::kI32, {rows}), best(DType::kI32, {rows, 1});
      HostTensor log_probs(DType::kF32, {rows}), expected(DType::kF32, {rows}), best_log_probs(DType::kF32, {rows, 1});
      HostTensor likeliest(DType::kI32, {rows}), expected_likeliest(DType::kI32, {rows});
      logits.fill_random(1, 5.0f);
      if (coarse)
        for (size_t i = 0; i < logits.size(); ++i) logits.set(i, std::round(logits.get(i) / 4));
      cpu.ops.top_log_probs(logits, best, best_log_probs);
      for (size_t row = 0; row < targets.size(); ++row)  // every other row's target is its likeliest token
        targets.set(row, row % 2 == 0 ? best.get(row) : static_cast<double>(row * 7919 % static_cast<size_t>(vocab)));
      score_on_gpu(logits, targets, log_probs, likeliest);
      cpu.ops.target_log_probs(logits, targets, expected, expected_likeliest);
      EXPECT_TRUE(same_bits(likeliest, expected_likeliest));
      expect_log_probs_of_cpu(log_probs, expected);
    }
}

TEST_F(CudaTargetLogProbsTest, NanAndInfinityAsTheCpu) {
  HostTensor logits(DType::kF32, {5, 3}), targets(DType::kI32, {5}), log_probs(DType::kF32, {5}),
      likeliest(DType::kI32, {5});
  logits.fill({NAN, 1, NAN, NAN, NAN, NAN, -HUGE_VAL, 0, -HUGE_VAL, 1, HUGE_VAL, 2, 0, -0.0, 0});
  targets.fill({1, 0, 1, 2, 1});
  score_on_gpu(logits, targets, log_probs, likeliest);
  EXPECT_EQ(likeliest.values(), (std::vector<double>{1, 1, 1, 0, 0}));
  EXPECT_TRUE(std::isnan(log_probs.get(0)));
  EXPECT_EQ(log_probs.get(2), 0);
}

}  // namespace
}  // namespace lfm2
