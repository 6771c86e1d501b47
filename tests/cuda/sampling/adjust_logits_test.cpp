// adjust_logits on the GPU gives the bits of the CPU's operator, and sample draws from them.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "cuda/gpu.h"
#include "kernels/sampling.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaAdjustLogitsTest : ::testing::Test {
  CpuReference cpu;
};

// A rule of each kind, and one of all kinds together; the third has its bans behind it from place 2 on.
std::vector<SamplingRule> some_rules() {
  return {{},
          {.repetition_penalty = 1.3f},
          {.banned = 2, .min_tokens = 2},
          {.temperature = 1, .top_p = 0.9f, .seed = 3, .presence_penalty = 0.7f, .frequency_penalty = 0.3f},
          {.temperature = 1, .seed = 5, .min_p = 0.1f, .biases = 3},
          {.temperature = 0.7f,
           .top_k = 30,
           .top_p = 0.95f,
           .seed = 7,
           .min_p = 0.02f,
           .repetition_penalty = 0.8f,
           .presence_penalty = -1.1f,
           .frequency_penalty = 0.1f,
           .biases = 2,
           .banned = 2,
           .min_tokens = 3}};
}

TEST_F(CudaAdjustLogitsTest, HasTheBitsOfTheCpu) {
  const std::vector<SamplingRule> each = some_rules();
  const auto rows = static_cast<int64_t>(each.size()), max_edits = int64_t{5};
  for (const int64_t vocab : {31, 8192, 65536, 70001}) {
    std::mt19937 random(static_cast<uint32_t>(vocab));
    HostTensor logits(DType::kF32, {rows, vocab}), out(DType::kF32, {rows, vocab}),
        expected(DType::kF32, {rows, vocab}), draws(DType::kI32, {rows, 2}), slots(DType::kI32, {rows}),
        rules(DType::kI32, {rows, kRuleWords}), counts(DType::kI32, {rows, vocab}),
        edits(DType::kI32, {rows, max_edits, kEditWords}), ids(DType::kI32, {rows}), log_probs(DType::kF32, {rows}),
        expected_ids(DType::kI32, {rows}), expected_log_probs(DType::kF32, {rows});
    logits.fill_random(1, 4.0f);
    logits.set(5, -HUGE_VAL);
    logits.set(6, std::nan(""));
    std::copy(each.begin(), each.end(), rules->as<SamplingRule>());
    for (size_t i = 0; i < counts.size(); ++i) counts.set(i, random() % 3 == 0 ? static_cast<double>(random() % 9) : 0);
    for (int64_t row = 0; row < rows; ++row) {
      slots.set(static_cast<size_t>(row), static_cast<double>(rows - 1 - row));
      for (int64_t i = 0; i < max_edits; ++i)  // of different tokens, the last of the vocabulary among them
        edits->as<LogitEdit>()[row * max_edits + i] = {static_cast<int32_t>(vocab - 1 - 5 * i),
                                                       0.25f * static_cast<float>(i)};
    }
    for (const double place : {0, 1, 2, 5}) {
      draws.fill(place);
      out.fill(-5);
      expected.fill(-5);
      const DeviceTensor device(logits), device_out(out), device_draws(draws), device_slots(slots), device_rules(rules),
          device_counts(counts), device_edits(edits), device_ids(ids), device_log_probs(log_probs);
      on_gpu([&](Ops& ops) {
        ops.adjust_logits(device, device_draws, device_rules, device_slots, {device_counts, device_edits}, device_out);
        ops.sample(device, device_out, device_draws, device_rules, device_ids, device_log_probs);
      });
      device_out.fetch(out);
      device_ids.fetch(ids);
      device_log_probs.fetch(log_probs);
      cpu.ops.adjust_logits(logits, draws, rules, slots, {counts, edits}, expected);
      for (size_t i = 0; i < out.size(); ++i)  // a NaN has no bits of its own
        ASSERT_TRUE(out.get(i) == expected.get(i) || (std::isnan(out.get(i)) && std::isnan(expected.get(i))))
            << "vocab " << vocab << ", place " << place << ", entry " << i;
      cpu.ops.sample(logits, expected, draws, rules, expected_ids, expected_log_probs);
      EXPECT_EQ(ids.values(), expected_ids.values()) << "vocab " << vocab << ", place " << place;
      for (size_t row = 1; row < log_probs.size(); ++row)  // of the raw logits; row 0 has a NaN
        EXPECT_NEAR(log_probs.get(row), expected_log_probs.get(row), 1e-5);
    }
  }
}

}  // namespace
}  // namespace lfm2
