// sample on the GPU draws tokens as kernels/sampling.h says.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "cuda/gpu.h"
#include "kernels/sampling.h"
#include "support/index_cast.h"

namespace lfm2 {
namespace {

using namespace test;

class CudaSampleTest : public ::testing::Test {
 protected:
  // Draws by sorting the logits.
  static int32_t reference(const std::vector<float>& logits, const SamplingRule& rule, int32_t sample, int32_t place) {
    std::vector<int64_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return sampling_key(logits[at(a)]) > sampling_key(logits[at(b)]); });
    if (rule.temperature == 0) return static_cast<int32_t>(order[0]);
    const auto value = [&](int64_t id) { return sampling_logit(sampling_key(logits[at(id)])); };
    if (rule.top_k > 0 && rule.top_k < static_cast<int64_t>(order.size())) order.resize(at(rule.top_k));
    std::vector<uint64_t> masses(logits.size());
    uint64_t total = 0;
    for (const int64_t id : order)
      total += masses[at(id)] = mass_of(value(id), value(order[0]), 1.0f / rule.temperature);
    if (rule.top_p < 1) {
      const uint64_t enough = nucleus_mass(rule.top_p, total);
      total = 0;
      size_t kept = 0;
      while (total < enough) total += masses[at(order[kept++])];
      order.resize(kept);
    }
    std::erase_if(order, [&](int64_t id) { return masses[at(id)] < least_mass(rule.min_p); });
    total = 0;
    for (const int64_t id : order) total += masses[at(id)];
    std::sort(order.begin(), order.end());
    uint64_t target = draw_below(total, rule.seed, sample, place);
    for (const int64_t id : order) {
      if (target < masses[at(id)]) return static_cast<int32_t>(id);
      target -= masses[at(id)];
    }
    return -1;
  }

  static void check(const HostTensor& logits, const SamplingRule& rule) {
    SCOPED_TRACE(fmt::format("vocab {}, temperature {}, top_k {}, top_p {}, min_p {}", logits->dim(1), rule.temperature,
                             rule.top_k, rule.top_p, rule.min_p));
    const int64_t rows = logits->dim(0), vocab = logits->dim(1);
    HostTensor draws(DType::kI32, {rows, 2}), ids(DType::kI32, {rows}), log_probs(DType::kF32, {rows});
    for (int64_t row = 0; row < rows; ++row) {
      draws.set(at(2 * row), static_cast<double>(row * 7919));
      draws.set(at(2 * row + 1), static_cast<double>(row % 3));
    }
    const int64_t k = std::min<int64_t>(vocab, 64);  // the entries whose log-probabilities top_log_probs computes, too
    const HostTensor top_ids(DType::kI32, {rows, k}), top(DType::kF32, {rows, k});
    const HostTensor rules = rules_of(rule, rows);
    const DeviceTensor device(logits), device_draws(draws), device_rules(rules), device_ids(ids),
        device_log_probs(log_probs), device_top_ids(top_ids), device_top(top);
    on_gpu([&](Ops& ops) {
      ops.sample(device, {}, device_draws, device_rules, device_ids, device_log_probs);
      ops.top_log_probs(device, device_top_ids, device_top);
    });
    device_ids.fetch(ids);
    device_log_probs.fetch(log_probs);
    device_top_ids.fetch(top_ids);
    device_top.fetch(top);
    for (int64_t row = 0; row < rows; ++row) {
      std::vector<float> values(at(vocab));
      for (int64_t i = 0; i < vocab; ++i) values[at(i)] = static_cast<float>(logits.get(at(row * vocab + i)));
      const int32_t id = ids->as<int32_t>()[row];
      ASSERT_EQ(id, reference(values, rule, static_cast<int32_t>(row * 7919), static_cast<int32_t>(row % 3)))
          << "row " << row;
      const bool drawable =
          std::none_of(values.begin(), values.end(), [](float x) { return std::isnan(x) || x == HUGE_VALF; }) &&
          std::any_of(values.begin(), values.end(), [](float x) { return x != -HUGE_VALF; });
      EXPECT_EQ(std::isnan(log_probs->as<float>()[row]), !drawable) << "row " << row;
      for (int64_t i = 0; i < k; ++i)
        if (top_ids->as<int32_t>()[row * k + i] == id) {
          EXPECT_EQ(std::bit_cast<uint32_t>(log_probs->as<float>()[row]),
                    std::bit_cast<uint32_t>(top->as<float>()[row * k + i]));
        }
    }
  }
};

TEST_F(CudaSampleTest, AgreesWithSorting) {
  for (const int64_t vocab : {1, 2, 31, 33, 1000, 65536, 70001}) {
    const int64_t rows = vocab < 2000 ? 12 : 4;
    for (const float spread : {0.0f, 0.5f, 3.0f, 30.0f}) {
      HostTensor logits(DType::kF32, {rows, vocab});
      logits.fill_random(static_cast<uint32_t>(vocab), spread);
      for (int64_t row = 1; row < rows; row += 2)  // rows with many ties
        for (int64_t i = 0; i < vocab; ++i)
          logits.set(at(row * vocab + i), std::round(logits.get(at(row * vocab + i)) * 2) / 2);
      for (const float temperature : {0.0f, 0.3f, 1.0f, 5.0f})
        for (const int64_t top_k : {int64_t{0}, int64_t{1}, int64_t{50}, vocab / 2, vocab + 5})
          for (const float top_p : {1.0f, 0.95f, 0.3f, 1e-9f}) {
            if (temperature == 0 && (top_k > 0 || top_p < 1)) continue;
            for (const float min_p : {0.0f, 0.1f, 1.0f}) {
              if (min_p > 0 && (temperature == 0 || (top_k == 1) || top_p < 0.5f)) continue;
              check(logits, {temperature, top_k, top_p, 0x123456789abcdefu + static_cast<uint64_t>(top_k), min_p});
              if (HasFatalFailure()) return;
            }
          }
    }
  }
}

TEST_F(CudaSampleTest, AFewRows) {
  for (const int64_t vocab : {33, 9001}) {
    HostTensor logits(DType::kF32, {3, vocab});
    logits.fill_random(1, 3.0f);
    for (const SamplingRule& rule : {SamplingRule{0.0f, 0, 1.0f, 1},
                                     {1.0f, 0, 1.0f, 2},
                                     {1.0f, 0, 0.9f, 3},
                                     {0.7f, 20, 0.9f, 4},
                                     {0.7f, 0, 1.0f, 5, 0.2f}})
      check(logits, rule);
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

TEST_F(CudaSampleTest, InfinitiesAndNans) {
  const int64_t vocab = 5000, rows = 8;
  HostTensor logits(DType::kF32, {rows, vocab});
  logits.fill_random(1, 3.0f);
  const auto fill = [&](int64_t row, double value, int64_t step) {
    for (int64_t i = 0; i < vocab; i += step) logits.set(at(row * vocab + i), value);
  };
  fill(0, -HUGE_VAL, 1);
  fill(1, -HUGE_VAL, 2);
  fill(2, std::nan(""), 1);
  fill(3, std::nan(""), 3);
  fill(4, HUGE_VAL, 1700);
  fill(5, 0.0, 1);
  fill(5, -0.0, 2);
  fill(6, 1e30, 1000);
  fill(7, -1e30, 2);
  for (const float temperature : {0.0f, 1.0f, 1e-30f, 1e30f})
    for (const int64_t top_k : {0, 3, 2500})
      for (const float top_p : {1.0f, 0.5f}) check(logits, {temperature, top_k, top_p, 5});
}

}  // namespace
}  // namespace lfm2
