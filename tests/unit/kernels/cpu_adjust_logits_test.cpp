// The operators count_tokens and adjust_logits of the CPU backend, and draws from what they give.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/cpu/cpu_ops.h"
#include "support/sampling_cases.h"

namespace lfm2::test {
namespace {

// Sequences that grow by some tokens in each batch.
struct AdjustLogitsTest : ::testing::Test {
  ThreadPool pool{3};
  CpuOps ops{pool, *available_simd().front()};

  // Feeds tokens of several sequences, each as (slot or -1, length of its prompt, position of its first token, tokens).
  struct Fed {
    int32_t slot, prompt, first;
    std::vector<int32_t> tokens;
  };
  void feed(const std::vector<Fed>& all, const Tensor& counts) {
    std::vector<int32_t> lengths;
    for (const Fed& one : all) lengths.push_back(static_cast<int32_t>(one.tokens.size()));
    const PackedBatch packed(lengths);
    HostTensor ids(DType::kI32, {packed.tokens()}), keepers(DType::kI32, {static_cast<int64_t>(all.size()), 2});
    for (size_t s = 0; s < all.size(); ++s) {
      keepers.set(2 * s, all[s].slot);
      keepers.set(2 * s + 1, all[s].prompt);
      for (size_t i = 0; i < all[s].tokens.size(); ++i) {
        const auto token = static_cast<size_t>(packed.offset(s)) + i;
        ids.set(token, all[s].tokens[i]);
        packed.positions->as<int32_t>()[token] = all[s].first + static_cast<int32_t>(i);
      }
    }
    ops.count_tokens(ids, keepers, packed.batch, counts);
  }
};

TEST_F(AdjustLogitsTest, CountsArePromptAndText) {
  HostTensor counts(DType::kI32, {3, 8});
  counts.fill(99);  // of sequences before
  feed({{1, 4, 0, {5, 5, 2}}, {-1, 2, 0, {1, 1}}, {0, 1, 0, {7}}}, counts);
  feed({{1, 4, 3, {6}}, {0, 1, 1, {7}}}, counts);
  feed({{0, 1, 2, {3}}, {1, 4, 4, {5, 0, 5}}}, counts);  // text that is fed again comes in chunks, too
  const auto row = [&](int64_t slot) {
    const auto* first = counts->as<int32_t>() + 8 * slot;
    return std::vector<int32_t>(first, first + 8);
  };
  EXPECT_EQ(row(0), (std::vector<int32_t>{0, 0, 0, kInText, 0, 0, 0, kInPrompt + kInText}));
  EXPECT_EQ(row(1), (std::vector<int32_t>{kInText, 0, kInPrompt, 0, 0, kInPrompt + 2 * kInText, kInPrompt, 0}));
  EXPECT_EQ(row(2), (std::vector<int32_t>(8, 99)));
  feed({{1, 2, 0, {4, 4}}}, counts);  // another sequence begins in the slot
  EXPECT_EQ(row(1), (std::vector<int32_t>{0, 0, 0, 0, kInPrompt, 0, 0, 0}));
}

TEST_F(AdjustLogitsTest, CountsAgreeWithTheirSpecificationOverManyBatches) {
  CpuUnderTest cpu(*available_simd().front());
  check_count_tokens(cpu);
}

TEST_F(AdjustLogitsTest, PenaltiesAreThoseOfTransformersAndOpenAi) {
  SamplingRule rule{.repetition_penalty = 2};
  EXPECT_EQ(penalized(3.0f, 0, rule), 3.0f);
  EXPECT_EQ(penalized(3.0f, kInPrompt, rule), 1.5f);
  EXPECT_EQ(penalized(-3.0f, kInPrompt, rule), -6.0f);
  EXPECT_EQ(penalized(3.0f, kInText, rule), 1.5f);  // once, however often
  EXPECT_EQ(penalized(3.0f, kInPrompt + 5 * kInText, rule), 1.5f);
  rule = {.presence_penalty = 0.5f, .frequency_penalty = 0.25f};
  EXPECT_EQ(penalized(3.0f, kInPrompt, rule), 3.0f);  // the prompt does not count
  EXPECT_EQ(penalized(3.0f, kInText, rule), 2.25f);
  EXPECT_EQ(penalized(3.0f, kInPrompt + 4 * kInText, rule), 1.5f);
  EXPECT_EQ(penalized(-HUGE_VALF, kInText, rule), -HUGE_VALF);
}

TEST_F(AdjustLogitsTest, WhatARuleNeeds) {
  EXPECT_FALSE((SamplingRule{.temperature = 1, .top_k = 4, .min_p = 0.5f}.adjusts(0)));
  EXPECT_TRUE((SamplingRule{.repetition_penalty = 1.5f}.counts()));
  EXPECT_TRUE((SamplingRule{.presence_penalty = -1}.counts()));
  EXPECT_TRUE((SamplingRule{.frequency_penalty = 1}.counts()));
  EXPECT_TRUE((SamplingRule{.biases = 1}.adjusts(9)));
  EXPECT_FALSE((SamplingRule{.biases = 1}.counts()));
  EXPECT_TRUE((SamplingRule{.banned = 1, .min_tokens = 3}.adjusts(2)));
  EXPECT_FALSE((SamplingRule{.banned = 1, .min_tokens = 3}.adjusts(3)));
}

TEST_F(AdjustLogitsTest, AgreesWithItsSpecification) {
  CpuUnderTest cpu(*available_simd().front());
  check_adjust_logits(cpu, 37);
}

// A row is drawn from its adjusted logits where its rule adjusts them; log-probabilities are of the raw ones.
TEST_F(AdjustLogitsTest, DrawsFromAdjustedLogits) {
  HostTensor logits(DType::kF32, {3, 4}), adjusted(DType::kF32, {3, 4}), draws(DType::kI32, {3, 2}),
      rules(DType::kI32, {3, kRuleWords}), ids(DType::kI32, {3}), log_probs(DType::kF32, {3});
  logits.fill({0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3});
  adjusted.fill({9, 1, 2, 3, 9, 1, 2, 3, 9, 1, 2, 3});
  draws.fill(5);
  auto* rule = rules->as<SamplingRule>();
  rule[0] = {};
  rule[1] = {.biases = 1};
  rule[2] = {.banned = 1, .min_tokens = 5};  // over
  ops.sample(logits, adjusted, draws, rules, ids, log_probs);
  EXPECT_EQ(ids.values(), (std::vector<double>{3, 0, 3}));
  const double sum = std::log(std::exp(0) + std::exp(1) + std::exp(2) + std::exp(3));
  EXPECT_NEAR(log_probs.get(0), 3 - sum, 1e-6);
  EXPECT_NEAR(log_probs.get(1), 0 - sum, 1e-6);
  EXPECT_THROW(ops.sample(logits, {}, draws, rules, ids, log_probs), Error);
}

// 100 000 draws with everything on follow the distribution that the definitions give in fp64.
TEST_F(AdjustLogitsTest, DrawsAsOftenAsTheDefinitionsSay) {
  constexpr int64_t kDraws = 100000, kTokens = 10;
  const SamplingRule rule{.temperature = 0.8f,
                          .top_k = 8,
                          .top_p = 0.97f,
                          .seed = 12,
                          .min_p = 0.3f,
                          .repetition_penalty = 1.4f,
                          .presence_penalty = 0.3f,
                          .frequency_penalty = 0.2f,
                          .biases = 1,
                          .banned = 1,
                          .min_tokens = 100};
  const std::vector<float> raw = {2.0f, 1.5f, -0.5f, 1.0f, 0.5f, 3.0f, 0.0f, -4.0f, 2.5f, 0.8f};
  const reference::Before before{{0, 2, 7}, {8, 8, 1}};
  const std::vector<LogitEdit> edits = {{6, 1.5f}, {5, 0}};
  HostTensor counts(DType::kI32, {1, kTokens}), edit_words(DType::kI32, {1, 2, kEditWords});
  feed({{0, 3, 0, {0, 2, 7, 8, 8, 1}}}, counts);
  std::copy(edits.begin(), edits.end(), edit_words->as<LogitEdit>());
  HostTensor logits(DType::kF32, {kDraws, kTokens}), adjusted(DType::kF32, {kDraws, kTokens}),
      draws(DType::kI32, {kDraws, 2}), slots(DType::kI32, {kDraws}), ids(DType::kI32, {kDraws}),
      log_probs(DType::kF32, {kDraws});
  for (size_t i = 0; i < logits.size(); ++i) logits.set(i, static_cast<double>(raw[i % raw.size()]));
  for (size_t i = 0; i < draws.size(); ++i) draws.set(i, i % 2 == 0 ? static_cast<double>(i / 2) : 3);
  slots.fill(0);
  const HostTensor rules = rules_of(rule, kDraws);
  ops.adjust_logits(logits, draws, rules, slots, {counts, edit_words}, {}, adjusted);
  ops.sample(logits, adjusted, draws, rules, ids, log_probs);

  // The distribution: sorted by the adjusted logits, cut by top-k, by top-p and by min-p.
  const std::vector<float> scores = reference::adjust_logits(raw, rule, before, edits, 3);
  std::vector<size_t> order(kTokens);
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  order.resize(8);
  std::vector<double> shares(kTokens, 0);
  double sum = 0, upto = 0, kept = 0;
  const auto weight = [&](size_t id) { return std::exp(static_cast<double>(scores[id] - scores[order[0]]) / 0.8); };
  for (const size_t id : order) sum += weight(id);
  for (const size_t id : order) {
    if (upto < 0.97 * sum && weight(id) >= 0.3) kept += shares[id] = weight(id);
    upto += weight(id);
  }
  size_t impossible = 0;
  double chi_square = 0;
  for (size_t id = 0; id < shares.size(); ++id) {
    const auto* found = ids->as<int32_t>();
    const auto count = static_cast<double>(std::count(found, found + kDraws, static_cast<int32_t>(id)));
    const double expected = shares[id] / kept * kDraws;
    if (expected == 0) {
      EXPECT_EQ(count, 0) << id;
      ++impossible;
    } else {
      chi_square += (count - expected) * (count - expected) / expected;
    }
  }
  EXPECT_EQ(impossible, 4u);    // one each by the ban, by top-k, by top-p and by min-p
  EXPECT_LT(chi_square, 20.5);  // 5 degrees of freedom exceed this once in a thousand
}

}  // namespace
}  // namespace lfm2::test
