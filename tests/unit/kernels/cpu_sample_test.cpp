// The operator sample of the CPU backend, its log-probabilities, and the functions of sampling.h that it shares with
// the GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/sampling.h"
#include "support/sampling_cases.h"

namespace lfm2 {
namespace {

using test::HostTensor;
using test::rules_of;
__extension__ using Wide = unsigned __int128;

struct SampleTest : ::testing::Test {
  ThreadPool pool{3};
  CpuOps ops{pool, *available_simd().front()};
  test::CpuUnderTest cpu{*available_simd().front()};

  // Draws `count` tokens from the same logits, for the samples 0, 1, …, each at `place`.
  std::vector<int> draw(const std::vector<double>& logits, const SamplingRule& rule, int64_t count, int64_t place = 0) {
    const auto vocab = static_cast<int64_t>(logits.size());
    HostTensor rows(DType::kF32, {count, vocab}), draws(DType::kI32, {count, 2}), ids(DType::kI32, {count}),
        log_probs(DType::kF32, {count});
    for (size_t i = 0; i < rows.size(); ++i) rows.set(i, logits[i % logits.size()]);
    for (size_t i = 0; i < draws.size(); ++i) draws.set(i, static_cast<double>(i % 2 == 0 ? i / 2 : place));
    ops.sample(rows, {}, draws, rules_of(rule, count), ids, log_probs);
    const auto* found = ids->as<int32_t>();
    return {found, found + count};
  }
  std::set<int> drawn(const std::vector<double>& logits, const SamplingRule& rule) {
    const std::vector<int> ids = draw(logits, rule, 2000);
    return {ids.begin(), ids.end()};
  }
};
using SamplingTest = SampleTest;
using LogProbsTest = SampleTest;

std::vector<uint32_t> philox_words(Philox counter, uint32_t key0, uint32_t key1) {
  const Philox result = philox(counter, key0, key1);
  return {result.words, result.words + 4};
}

TEST_F(SamplingTest, PhiloxGivesItsKnownAnswers) {  // from kat_vectors of Random123
  using Words = std::vector<uint32_t>;
  const uint32_t ones = 0xffffffffu;
  EXPECT_EQ(philox_words({{0, 0, 0, 0}}, 0, 0), (Words{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  EXPECT_EQ(philox_words({{ones, ones, ones, ones}}, ones, ones),
            (Words{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(philox_words({{0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}}, 0xa4093822u, 0x299f31d0u),
            (Words{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

TEST_F(SamplingTest, DrawsAPlaceFromTheFirstTwoWords) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 1000; ++i) {
    const uint64_t seed = random(), total = random() >> (i % 64);
    const auto sample = static_cast<int32_t>(random() >> 33), place = static_cast<int32_t>(random() >> 33);
    const auto words = philox_words({{static_cast<uint32_t>(sample), static_cast<uint32_t>(place), 0, 0}},
                                    static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
    const uint64_t number = uint64_t{words[0]} << 32 | words[1];
    EXPECT_EQ(draw_below(total, seed, sample, place), static_cast<uint64_t>(Wide{number} * total >> 64));
  }
}

TEST_F(SamplingTest, MassIsTheExponential) {
  EXPECT_EQ(mass_of(3.0f, 3.0f, 0.7f), uint64_t{1} << kMassBits);
  EXPECT_EQ(mass_of(HUGE_VALF, HUGE_VALF, 0.7f), uint64_t{1} << kMassBits);
  EXPECT_EQ(mass_of(1.0f, HUGE_VALF, 0.7f), 0u);
  EXPECT_EQ(mass_of(-HUGE_VALF, 1.0f, 0.7f), 0u);
  EXPECT_EQ(mass_of(0.0f, 1.0f, HUGE_VALF), 0u);
  uint64_t before = uint64_t{1} << kMassBits;
  for (float x = 0.0f; x > -31.0f; x -= 0x1p-9f) {
    const uint64_t mass = mass_of(x, 0.0f, 1.0f);
    const double exact = std::ldexp(std::exp(static_cast<double>(x)), kMassBits);
    EXPECT_NEAR(static_cast<double>(mass), exact, 1 + exact * 0x1p-22) << x;
    EXPECT_LE(mass, before) << x;
    before = mass;
  }
}

TEST_F(SamplingTest, KeysOrderAsLogits) {
  const std::vector<float> ascending = {-HUGE_VALF, -3e38f, -1.0f, -1e-45f, 0.0f, 1e-45f, 1.0f, 3e38f, HUGE_VALF};
  for (size_t i = 0; i + 1 < ascending.size(); ++i) {
    EXPECT_LT(sampling_key(ascending[i]), sampling_key(ascending[i + 1]));
    EXPECT_EQ(sampling_logit(sampling_key(ascending[i])), ascending[i]);
  }
  EXPECT_EQ(sampling_key(-0.0f), sampling_key(0.0f));
  for (const float nan : {NAN, -NAN}) EXPECT_EQ(sampling_key(nan), sampling_key(-HUGE_VALF));
}

TEST_F(SamplingTest, NucleusHoldsTheShare) {
  EXPECT_EQ(nucleus_mass(1.0f, 1000), 1000u);
  EXPECT_EQ(nucleus_mass(0.5f, 1000), 500u);
  EXPECT_EQ(nucleus_mass(0.5f, 1001), 501u);
  EXPECT_EQ(nucleus_mass(1e-30f, 1000), 1u);
  EXPECT_EQ(nucleus_mass(0.0f, 1000), 1u);
  EXPECT_EQ(nucleus_mass(std::nextafter(1.0f, 0.0f), 1000), 1000u);
}

TEST_F(SamplingTest, LeastMassIsAShareOfTheLargest) {
  EXPECT_EQ(least_mass(0.0f), 0u);
  EXPECT_EQ(least_mass(1.0f), uint64_t{1} << kMassBits);
  EXPECT_EQ(least_mass(0.25f), uint64_t{1} << (kMassBits - 2));
  EXPECT_EQ(least_mass(1e-30f), 1u);
}

TEST_F(SampleTest, GreedyTakesTheLargestAndOfTiesTheLowerId) {
  HostTensor logits(DType::kF32, {6, 4}), draws(DType::kI32, {6, 2}), ids(DType::kI32, {6}),
      log_probs(DType::kF32, {6});
  draws.fill(7);
  logits.fill({1,    5,   -2,  5,     //
               -3,   -3,  -3,  -3,    //
               NAN,  -9,  NAN, 0,     //
               NAN,  NAN, NAN, NAN,   //
               -0.0, 0.0, -1,  -5e9,  //
               1,    2,   3,   HUGE_VAL});
  ops.sample(logits, {}, draws, rules_of({0, 2, 0.1f, 5}, logits->dim(0)), ids, log_probs);
  EXPECT_EQ(ids.values(), (std::vector<double>{1, 0, 3, 0, 0, 3}));
  EXPECT_NEAR(log_probs.get(1), -std::log(4.0), 1e-7);
  EXPECT_TRUE(std::isnan(log_probs.get(2)));  // a NaN spoils log_softmax of its row, but not the token
}

// Wherever the value stands, by whatever rule, in few rows and in many, which are summed otherwise.
TEST_F(SampleTest, ALogProbabilityIsNanExactlyWhereNoTokenCanBeDrawn) {
  constexpr int64_t kVocab = 3000;
  for (const int64_t copies : {1, 40})
    for (const SamplingRule& rule : {SamplingRule{0}, SamplingRule{1, 0, 1.0f, 5}, SamplingRule{1, 20, 0.9f, 5}}) {
      std::vector<std::pair<double, int64_t>> cases{{0, 0}, {-HUGE_VAL, 0}, {-HUGE_VAL, kVocab - 1}};
      const size_t drawable = cases.size();
      for (const double value : {double{NAN}, HUGE_VAL})
        for (const int64_t place : {int64_t{0}, kVocab / 2, kVocab - 1}) cases.emplace_back(value, place);
      cases.emplace_back(-HUGE_VAL, -1);  // all of them
      const int64_t rows = copies * std::ssize(cases);
      HostTensor logits(DType::kF32, {rows, kVocab}), draws(DType::kI32, {rows, 2}), ids(DType::kI32, {rows}),
          log_probs(DType::kF32, {rows});
      logits.fill_random(3, 2.0f);
      draws.fill(1);
      for (int64_t row = 0; row < rows; ++row) {
        const auto& [value, place] = cases[static_cast<size_t>(row) % cases.size()];
        for (int64_t id = 0; id < kVocab; ++id)
          if (id == place || place < 0) logits.set(static_cast<size_t>(row * kVocab + id), value);
      }
      ops.sample(logits, {}, draws, rules_of(rule, rows), ids, log_probs);
      for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
        EXPECT_EQ(std::isnan(log_probs.get(row)), row % cases.size() >= drawable) << row % cases.size();
        EXPECT_TRUE(ids.get(row) >= 0 && ids.get(row) < kVocab);
      }
    }
}

TEST_F(SampleTest, AgreesWithItsSpecification) { test::check_sample(cpu, {1, 2, 37, 1000}); }

TEST_F(SampleTest, InfinitiesAndNans) { test::check_sample_of_nans(cpu); }

TEST_F(LogProbsTest, AnyKAndVocabulary) { test::check_top_log_probs(cpu); }

TEST_F(LogProbsTest, EveryTarget) { test::check_target_log_probs(cpu); }

// Alone, a row is shared by all threads, which search pieces of it; among others it belongs to one.
TEST_F(SampleTest, ARowHasTheSameTokenAloneAndAmongOthersAndWithAnyThreads) {
  const int64_t rows = 9, vocab = 9000;
  HostTensor logits(DType::kF32, {rows, vocab}), draws(DType::kI32, {rows, 2}), ids(DType::kI32, {rows}),
      log_probs(DType::kF32, {rows}), one_id(DType::kI32, {1}), one_log_prob(DType::kF32, {1});
  logits.fill_random(1, 2.0f);
  for (size_t i = 0; i < draws.size(); ++i) draws.set(i, static_cast<double>(i));
  ThreadPool one(1);
  for (const SamplingRule& rule : {SamplingRule{0.9f, 100, 0.9f, 11}, SamplingRule{}}) {
    ops.sample(logits, {}, draws, rules_of(rule, rows), ids, log_probs);
    for (ThreadPool* threads : {&one, &pool})
      for (int64_t row = 0; row < rows; ++row) {
        CpuOps(*threads, *available_simd().back())
            .sample(logits->rows(row, 1), {}, draws->rows(row, 1), rules_of(rule, 1), one_id, one_log_prob);
        EXPECT_TRUE(test::same_bits(one_id, ids->rows(row, 1)));
        EXPECT_TRUE(test::same_bits(one_log_prob, log_probs->rows(row, 1)));
      }
  }
}

TEST_F(SampleTest, ARowHasTheTokenOfItsOwnRule) {
  const int64_t rows = 4, vocab = 300;
  HostTensor logits(DType::kF32, {rows, vocab}), draws(DType::kI32, {rows, 2}), ids(DType::kI32, {rows}),
      log_probs(DType::kF32, {rows}), one_id(DType::kI32, {1}), one_log_prob(DType::kF32, {1});
  logits.fill_random(1, 2.0f);
  for (size_t i = 0; i < draws.size(); ++i) draws.set(i, static_cast<double>(i));
  const std::vector<SamplingRule> each = {{0, 0, 1, 0}, {0.7f, 0, 1, 3}, {1.5f, 9, 1, 4}, {1, 0, 0.5f, 5}};
  HostTensor rules(DType::kI32, {rows, kRuleWords});
  std::copy(each.begin(), each.end(), rules->as<SamplingRule>());
  ops.sample(logits, {}, draws, rules, ids, log_probs);
  for (int64_t row = 0; row < rows; ++row) {
    ops.sample(logits->rows(row, 1), {}, draws->rows(row, 1), rules_of(each[static_cast<size_t>(row)], 1), one_id,
               one_log_prob);
    EXPECT_TRUE(test::same_bits(one_id, ids->rows(row, 1)));
  }
}

TEST_F(SampleTest, KeepsWhatTransformersKeeps) {
  std::vector<double> logits;  // the order of the ids is 1, 3, 0, 2
  for (const double share : {0.2, 0.4, 0.1, 0.3}) logits.push_back(std::log(share));
  using Ids = std::set<int>;
  EXPECT_EQ(drawn(logits, {1, 0, 1.0f, 1}), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(drawn(logits, {1, 0, 0.95f, 1}), (Ids{0, 1, 2, 3}));  // 0.9 of the mass comes before the last one
  EXPECT_EQ(drawn(logits, {1, 0, 0.85f, 1}), (Ids{0, 1, 3}));
  EXPECT_EQ(drawn(logits, {1, 0, 0.8f, 1}), (Ids{0, 1, 3}));
  EXPECT_EQ(drawn(logits, {1, 0, 0.65f, 1}), (Ids{1, 3}));
  EXPECT_EQ(drawn(logits, {1, 0, 0.35f, 1}), (Ids{1}));
  EXPECT_EQ(drawn(logits, {1, 0, 1e-9f, 1}), (Ids{1}));
  EXPECT_EQ(drawn(logits, {1, 2, 1.0f, 1}), (Ids{1, 3}));
  EXPECT_EQ(drawn(logits, {1, 9, 1.0f, 1}), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(drawn(logits, {1, 3, 0.75f, 1}), (Ids{1, 3}));  // of these three, 7/9 comes before the last one
  // 16, 9, 4 and 1 of 30: the temperature is applied first.
  EXPECT_EQ(drawn(logits, {0.5f, 0, 0.8f, 1}), (Ids{1, 3}));
  // min_p is a share of the top-1 token's 0.4, whatever top_p leaves of the rest.
  EXPECT_EQ(drawn(logits, {1, 0, 1.0f, 1, 0.2f}), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(drawn(logits, {1, 0, 1.0f, 1, 0.3f}), (Ids{0, 1, 3}));
  EXPECT_EQ(drawn(logits, {1, 0, 1.0f, 1, 0.6f}), (Ids{1, 3}));
  EXPECT_EQ(drawn(logits, {1, 0, 1.0f, 1, 0.8f}), (Ids{1}));
  EXPECT_EQ(drawn(logits, {1, 0, 1.0f, 1, 1.0f}), (Ids{1}));
  EXPECT_EQ(drawn(logits, {1, 0, 0.65f, 1, 0.3f}), (Ids{1, 3}));
  EXPECT_EQ(drawn(logits, {1, 2, 1.0f, 1, 0.3f}), (Ids{1, 3}));
  EXPECT_EQ(drawn(logits, {0.5f, 0, 1.0f, 1, 0.3f}), (Ids{1, 3}));  // the temperature is applied first: 16, 9, 4 and 1
  EXPECT_EQ(drawn({2, 2, 2, 2}, {1, 0, 1.0f, 1, 1.0f}), (Ids{0, 1, 2, 3}));
  // Of equal logits exactly half are kept, those with the lower ids.
  EXPECT_EQ(drawn({2, 2, 2, 2}, {1, 0, 0.5f, 1}), (Ids{0, 1}));
  EXPECT_EQ(drawn({2, 2, 2, 2}, {1, 3, 1.0f, 1}), (Ids{0, 1, 2}));
}

TEST_F(SampleTest, NeverDrawsWhatIsImpossible) {
  using Ids = std::set<int>;
  EXPECT_EQ(drawn({-HUGE_VAL, 1, NAN, 1, -HUGE_VAL}, {1, 0, 1.0f, 1}), (Ids{1, 3}));
  EXPECT_EQ(drawn({-HUGE_VAL, 1, NAN, 1, -HUGE_VAL}, {1, 4, 0.999f, 1}), (Ids{1, 3}));
  EXPECT_EQ(drawn({0, HUGE_VAL, 5}, {1, 0, 1.0f, 1}), (Ids{1}));
  EXPECT_EQ(drawn({-HUGE_VAL, -HUGE_VAL}, {1, 0, 1.0f, 1}), (Ids{0, 1}));  // all are alike
  EXPECT_EQ(drawn({NAN, NAN, NAN}, {1, 2, 1.0f, 1}), (Ids{0, 1}));
}

// The sum of the squared differences between drawn and expected counts, each divided by the expected count.
double chi_square(const std::vector<int>& ids, const std::vector<double>& shares) {
  std::vector<double> counts(shares.size(), 0);
  for (const int id : ids) counts[static_cast<size_t>(id)] += 1;
  double sum = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    const double expected = shares[i] * static_cast<double>(ids.size());
    sum += expected > 0 ? std::pow(counts[i] - expected, 2) / expected : counts[i] > 0 ? HUGE_VAL : 0;
  }
  return sum;
}

TEST_F(SampleTest, DrawsAsOftenAsTheSharesSay) {
  const std::vector<double> logits = {0.3, -1.2, 2.0, 0.9, -0.4, 1.1, 1.9, 0.0};
  const auto shares_of = [&](const std::vector<size_t>& kept, double temperature) {
    std::vector<double> shares(logits.size(), 0);
    double sum = 0;
    for (const size_t id : kept) sum += shares[id] = std::exp(logits[id] / temperature);
    for (double& share : shares) share /= sum;
    return shares;
  };
  const std::vector<size_t> all = {0, 1, 2, 3, 4, 5, 6, 7};
  // The value that chi square with 7 degrees of freedom exceeds once in a thousand.
  constexpr double kLimit = 24.3;
  for (const uint64_t seed : {uint64_t{1}, uint64_t{2}, uint64_t{0xfeedfacecafebeef}}) {
    EXPECT_LT(chi_square(draw(logits, {1.0f, 0, 1.0f, seed}, 40000), shares_of(all, 1.0)), kLimit);
    EXPECT_LT(chi_square(draw(logits, {0.6f, 0, 1.0f, seed}, 40000), shares_of(all, 0.6)), kLimit);
    EXPECT_LT(chi_square(draw(logits, {1.0f, 4, 1.0f, seed}, 40000), shares_of({2, 3, 5, 6}, 1.0)), kLimit);
    EXPECT_LT(chi_square(draw(logits, {1.0f, 0, 1.0f, seed, 0.3f}, 100000), shares_of({2, 3, 5, 6}, 1.0)), kLimit);
    EXPECT_LT(chi_square(draw(logits, {2.0f, 6, 0.9f, seed, 0.45f}, 100000), shares_of({2, 3, 5, 6}, 2.0)), kLimit);
    std::vector<int> along;  // one sample, at one place after the other
    for (int64_t place = 0; place < 4000; ++place) along.push_back(draw(logits, {1.0f, 0, 1.0f, seed}, 1, place)[0]);
    EXPECT_LT(chi_square(along, shares_of(all, 1.0)), kLimit);
  }
  EXPECT_NE(draw(logits, {1.0f, 0, 1.0f, 1}, 50), draw(logits, {1.0f, 0, 1.0f, 2}, 50));
  EXPECT_NE(draw(logits, {1.0f, 0, 1.0f, 1}, 50, 0), draw(logits, {1.0f, 0, 1.0f, 1}, 50, 1));
}

TEST_F(SampleTest, NoRows) {
  HostTensor logits(DType::kF32, {0, 4}), draws(DType::kI32, {0, 2}), ids(DType::kI32, {0}),
      log_probs(DType::kF32, {0});
  ops.sample(logits, {}, draws, rules_of({1, 0, 1, 1}, logits->dim(0)), ids, log_probs);
}

}  // namespace
}  // namespace lfm2
