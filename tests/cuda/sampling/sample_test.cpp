// sample on the GPU draws tokens as kernels/sampling.h says.
#include <gtest/gtest.h>

#include <cmath>

#include "cuda/gpu.h"
#include "support/sampling_cases.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaSampleTest : ::testing::Test {
  GpuUnderTest gpu_ops;
};

TEST_F(CudaSampleTest, AgreesWithItsSpecification) { check_sample(gpu_ops, {1, 2, 31, 33, 37, 1000, 65536, 70001}); }

TEST_F(CudaSampleTest, InfinitiesAndNans) { check_sample_of_nans(gpu_ops); }

TEST_F(CudaSampleTest, AFewRows) {
  for (const int64_t vocab : {33, 9001}) {
    HostTensor logits(DType::kF32, {3, vocab});
    logits.fill_random(1, 3.0f);
    for (const SamplingRule& rule : {SamplingRule{0.0f, 0, 1.0f, 1},
                                     {1.0f, 0, 1.0f, 2},
                                     {1.0f, 0, 0.9f, 3},
                                     {0.7f, 20, 0.9f, 4},
                                     {0.7f, 0, 1.0f, 5, 0.2f}})
      check_sample(gpu_ops, logits, rule);
  }
}

// Few rows are surveyed by several blocks each, many by one.
TEST_F(CudaSampleTest, ManyRowsGiveTheBitsOfFew) {
  constexpr int64_t kRows = 20, kFew = 5;
  for (const int64_t vocab : {7, 513, 9001, 65536}) {
    HostTensor logits(DType::kF32, {kRows, vocab});
    logits.fill_random(static_cast<uint32_t>(vocab), 4.0f);
    logits.set(at(3 * vocab + vocab / 2), std::nan(""));
    for (int64_t i = 0; i < vocab; ++i) logits.set(at(8 * vocab + i), i % 3 == 0 ? -HUGE_VAL : 1.0);
    HostTensor draws(DType::kI32, {kRows, 2});
    for (int64_t i = 0; i < 2 * kRows; ++i) draws.set(at(i), static_cast<double>(i));
    for (const SamplingRule& rule : {SamplingRule{0.0f, 0, 1.0f, 1}, {0.8f, 40, 0.9f, 4}}) {
      const HostTensor rules = rules_of(rule, kRows), zeros(DType::kI32, {kRows});
      const DeviceTensor device(logits), device_draws(draws), device_rules(rules);
      const auto drawn = [&](int64_t each) {
        const DeviceTensor ids(zeros), log_probs(zeros);
        on_gpu([&](Ops& ops) {
          for (int64_t first = 0; first < kRows; first += each)
            ops.sample(device->rows(first, each), {}, device_draws->rows(first, each), device_rules->rows(first, each),
                       ids->rows(first, each), Tensor(log_probs->rows(first, each).data, DType::kF32, {each}));
        });
        std::vector<int32_t> words;
        for (const DeviceTensor* result : {&ids, &log_probs}) {
          const HostTensor host(DType::kI32, {kRows});
          result->fetch(host);
          words.insert(words.end(), host->as<int32_t>(), host->as<int32_t>() + kRows);
        }
        return words;
      };
      EXPECT_EQ(drawn(kRows), drawn(kFew)) << "vocab " << vocab << ", temperature " << rule.temperature;
    }
  }
}

}  // namespace
}  // namespace lfm2
