// top_log_probs on the GPU, compared with the CPU's operator.
#include <gtest/gtest.h>

#include <cmath>

#include "cuda/gpu.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaTopLogProbsTest : ::testing::Test {
  CpuReference cpu;
};

void top_on_gpu(const HostTensor& logits, const HostTensor& ids, const HostTensor& log_probs) {
  const DeviceTensor in(logits), device_ids(ids), device_log_probs(log_probs);
  on_gpu([&](Ops& ops) { ops.top_log_probs(in, device_ids, device_log_probs); });
  device_ids.fetch(ids);
  device_log_probs.fetch(log_probs);
}

TEST_F(CudaTopLogProbsTest, AnyKAsTheCpu) {
  for (const bool coarse : {false, true})  // coarse logits have very many ties
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
        expect_log_probs_of_cpu(log_probs, expected);
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
