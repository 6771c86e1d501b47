// The row-wise operators of the CPU backend, compared with transformers and with double precision.
#include "kernels/cpu/cpu_ops.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "support/golden.h"
#include "support/host_tensor.h"
#include "support/packed_batch.h"

namespace lfm2 {
namespace {

using test::HostTensor;
using test::PackedBatch;

constexpr std::initializer_list<DType> kOpTypes = {DType::kF32, DType::kBf16, DType::kF16};

struct CpuOpsFixture : ::testing::TestWithParam<const Simd*> {
  ThreadPool pool{3};
  CpuOps ops{pool, *GetParam()};
};
using EmbedTest = CpuOpsFixture;
using RmsNormTest = CpuOpsFixture;
using ShortConvTest = CpuOpsFixture;
using SwigluTest = CpuOpsFixture;
using GatherRowsTest = CpuOpsFixture;
using InsertDrawnTest = CpuOpsFixture;
using ExponentialTest = CpuOpsFixture;
using TopLogProbsTest = CpuOpsFixture;
using TargetLogProbsTest = CpuOpsFixture;

TEST_P(EmbedTest, CopiesOrConvertsTheRows) {
  HostTensor ids(DType::kI32, {4});
  ids.fill({2, 0, 2, 4});
  for (const DType from : kOpTypes) {
    HostTensor table(from, {5, 33});
    table.fill_random(1);
    for (const DType to : kOpTypes) {
      HostTensor out(to, {4, 33});
      ops.embed(ids, table, out);
      std::vector<double> expected, tolerance;
      for (const size_t id : {2u, 0u, 2u, 4u})
        for (size_t c = 0; c < 33; ++c) {
          expected.push_back(table.get(id * 33 + c));
          tolerance.push_back(from == to ? 0 : test::store_error(to, expected.back()));
        }
      test::expect_close(out, expected, tolerance);
    }
  }
  HostTensor table(DType::kF32, {4, 33}), out(DType::kF32, {4, 33});
  EXPECT_THROW(ops.embed(ids, table, out), Error);  // there is no id 4 in a table of 4 rows
}

TEST_P(RmsNormTest, AgreesWithTransformers) {
  const auto x = test::golden_operator("rms_norm/x"), weight = test::golden_operator("rms_norm/weight"),
             y = test::golden_operator("rms_norm/y");
  HostTensor in(DType::kF32, {7, 64}), scale(DType::kF32, {64}), out(DType::kF32, {7, 64});
  in.fill(x.values);
  scale.fill(weight.values);
  ops.rms_norm(in, scale, 1e-5f, out);
  std::vector<double> tolerance;
  for (const double value : y.values) tolerance.push_back(8 * 0x1p-24 * std::fabs(value));
  test::expect_close(out, y.values, tolerance);
}

TEST_P(RmsNormTest, EveryTypeInPlaceAndOddWidths) {
  for (const DType act : kOpTypes)
    for (const DType weight : kOpTypes)
      for (const int64_t n : {1, 17, 2048, 2500}) {
        HostTensor x(act, {5, n}), scale(weight, {n});
        x.fill_random(1, 3.0f);
        scale.fill_random(2);
        for (int64_t c = 0; c < n; ++c) x.set(static_cast<size_t>(c), 0);  // a row of zeros stays zero
        std::vector<double> expected, tolerance;
        for (size_t r = 0; r < 5; ++r) {
          double sum = 0;
          const auto width = static_cast<size_t>(n);
          for (size_t c = 0; c < width; ++c) sum += std::pow(x.get(r * width + c), 2);
          for (size_t c = 0; c < width; ++c) {
            const double value = x.get(r * width + c) / std::sqrt(sum / static_cast<double>(n) + 1e-5) * scale.get(c);
            expected.push_back(value);
            // Half of the sum's error (64 additions in a lane, then the fold), and six roundings after it.
            tolerance.push_back((70.0 / 2 + 6) * 0x1p-24 * std::fabs(value) + test::store_error(act, value));
          }
        }
        SCOPED_TRACE(fmt::format("{} {} {}", name(act), name(weight), n));
        ops.rms_norm(x, scale, 1e-5f, x);
        test::expect_close(x, expected, tolerance);
      }
}

TEST_P(RmsNormTest, RefusesOtherShapesAndIntegers) {
  const HostTensor weight(DType::kF32, {5}), integer_weight(DType::kI32, {5});
  for (const int64_t rows : {0, 3}) {
    const HostTensor x(DType::kF32, {rows, 5}), narrower(DType::kF32, {rows, 4}), integers(DType::kI32, {rows, 5});
    EXPECT_THROW(ops.rms_norm(x, weight, 1e-5f, narrower), Error) << rows;
    EXPECT_THROW(ops.rms_norm(integers, weight, 1e-5f, integers), Error) << rows;
    EXPECT_THROW(ops.rms_norm(x, integer_weight, 1e-5f, x), Error) << rows;
  }
}

TEST_P(ShortConvTest, AgreesWithTransformers) {
  for (const std::string kind : {"k3", "k3_bias", "k4", "k4_bias"}) {
    SCOPED_TRACE(kind);
    const auto x = test::golden_operator("causal_conv1d/" + kind + "/x"),
               w = test::golden_operator("causal_conv1d/" + kind + "/w");
    const auto y = test::golden_operator("causal_conv1d/" + kind + "/y");
    const int64_t samples = x.dim(0), channels = x.dim(1), length = x.dim(2), taps = w.dim(1);
    const PackedBatch packed(std::vector<int32_t>(static_cast<size_t>(samples), static_cast<int32_t>(length)));
    HostTensor bcz(DType::kF32, {samples * length, 3 * channels}), weight(DType::kF32, {channels, taps});
    HostTensor out(DType::kF32, {samples * length, channels}), bias(DType::kF32, {channels});
    bcz.fill(1.0);
    weight.fill(w.values);
    const bool has_bias = kind.size() > 2;
    if (has_bias) bias.fill(test::golden_operator("causal_conv1d/" + kind + "/bias").values);
    std::vector<double> expected(y.values.size());
    for (int64_t i = 0; i < samples; ++i)
      for (int64_t c = 0; c < channels; ++c)
        for (int64_t t = 0; t < length; ++t) {
          const auto from = static_cast<size_t>((i * channels + c) * length + t);
          bcz.set(static_cast<size_t>((i * length + t) * 3 * channels + 2 * channels + c), x.values[from]);
          expected[static_cast<size_t>((i * length + t) * channels + c)] = y.values[from];
        }
    ops.short_conv(bcz, weight, has_bias ? bias.view() : Tensor{}, packed.batch, out);
    test::expect_close(out, expected, std::vector<double>(expected.size(), 2 * 5 * 0x1p-24 * 10));
  }
}

TEST_P(ShortConvTest, GatesAndSamplesOfAnyLength) {
  const PackedBatch packed({1, 2, 0, 7, 3});
  const int64_t hidden = 37;
  for (const DType act : kOpTypes)
    for (const int64_t taps : {1, 3, 5}) {
      SCOPED_TRACE(fmt::format("{} taps {}", name(act), taps));
      HostTensor bcz(act, {packed.tokens(), 3 * hidden}), weight(DType::kBf16, {hidden, 1, taps}),
          bias(DType::kBf16, {hidden});
      HostTensor out(act, {packed.tokens(), hidden});
      bcz.fill_random(1);
      weight.fill_random(2);
      bias.fill_random(3);
      ops.short_conv(bcz, weight, bias, packed.batch, out);
      std::vector<double> expected, tolerance;
      for (int64_t t = 0; t < packed.tokens(); ++t)
        for (int64_t c = 0; c < hidden; ++c) {
          const auto at = [&](int64_t row, int64_t part) {
            return bcz.get(static_cast<size_t>((row * 3 + part) * hidden + c));
          };
          double sum = bias.get(static_cast<size_t>(c)), magnitude = std::fabs(sum);
          for (int64_t j = 0; j < taps; ++j) {
            const int64_t back = taps - 1 - j;
            if (static_cast<double>(back) > packed.positions.get(static_cast<size_t>(t))) continue;
            const double term = weight.get(static_cast<size_t>(c * taps + j)) * at(t - back, 0) * at(t - back, 2);
            sum += term;
            magnitude += std::fabs(term);
          }
          expected.push_back(at(t, 1) * sum);
          tolerance.push_back(static_cast<double>(taps + 4) * 0x1p-24 * magnitude * std::fabs(at(t, 1)) +
                              test::store_error(act, expected.back()));
        }
      test::expect_close(out, expected, tolerance);
    }
}

// Products with a unit matrix give the activations themselves.
TEST_P(SwigluTest, AgreesWithTransformers) {
  const auto x = test::golden_operator("map/silu/a"), y = test::golden_operator("map/silu/y");
  ASSERT_EQ(x.values.size(), 54u);
  HostTensor a(DType::kF32, {54, 16}), w(DType::kF32, {16, 16}), out(DType::kF32, {54, 8});
  a.fill(0.0);
  w.fill(0.0);
  for (size_t i = 0; i < 16; ++i) w.set(i * 16 + i, 1.0);
  for (size_t i = 0; i < 54; ++i) {
    a.set(i * 16 + 3, x.values[i]);
    a.set(i * 16 + 8 + 3, 1.0);
  }
  ops.matmul_swiglu(a, w, out);
  for (size_t i = 0; i < 54; ++i) EXPECT_NEAR(out.get(i * 8 + 3), y.values[i], 6 * 0x1p-24 * std::fabs(y.values[i]));
}

TEST_P(SwigluTest, EveryTypeGroupAndLargeValues) {
  const int64_t experts = 3, ffn = 24, k = 20, rows = 9;
  HostTensor offsets(DType::kI32, {experts + 1});
  offsets.fill({0, 4, 4, 9});
  for (const DType act : kOpTypes) {
    HostTensor a(act, {rows, k}), w(act, {experts, 2 * ffn, k}), out(act, {rows, ffn}), dense(act, {rows, ffn});
    a.fill_random(1, 2.0f);
    w.fill_random(2, 2.0f);
    a.set(0, 30);
    a.set(static_cast<size_t>(k), -30);
    ops.grouped_swiglu(a, w, offsets, out);
    std::vector<double> expected, tolerance;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t expert = r < 4 ? 0 : 2;
      for (int64_t c = 0; c < ffn; ++c) {
        double sums[2] = {}, magnitudes[2] = {};
        for (int64_t part = 0; part < 2; ++part)
          for (int64_t i = 0; i < k; ++i) {
            const int64_t row = expert * 2 * ffn + c / 8 * 16 + part * 8 + c % 8;
            const double term = a.get(static_cast<size_t>(r * k + i)) * w.get(static_cast<size_t>(row * k + i));
            sums[part] += term;
            magnitudes[part] += std::fabs(term);
          }
        expected.push_back(sums[0] / (1 + std::exp(-sums[0])) * sums[1]);
        tolerance.push_back(static_cast<double>(k + 8) * 0x1p-24 *
                                (2 * magnitudes[0] * std::fabs(sums[1]) + std::fabs(sums[0]) * magnitudes[1]) +
                            1e-30 + test::store_error(act, expected.back()));
      }
    }
    test::expect_close(out, expected, tolerance);
    ops.matmul_swiglu(a, w->at(2), dense);
    EXPECT_TRUE(test::same_bits(dense->rows(4, 5), out->rows(4, 5)));
  }
}

// The distance to the true value in units of the result's last place; a subnormal's unit is 2^-149.
double units_off(float found, double expected) {
  if (std::isnan(expected)) return std::isnan(found) ? 0 : HUGE_VAL;
  if (expected >= 0x1.ffffffp127) return found == HUGE_VALF ? 0 : HUGE_VAL;
  const int exponent = expected < 0x1p-126 ? -149 : std::ilogb(expected) - 23;
  return std::fabs(static_cast<double>(found) - expected) / std::ldexp(1.0, exponent);
}

TEST_P(ExponentialTest, WithinTwoUnitsEverywhere) {
  std::vector<float> x, y;
  for (const float special : {0.0f, -0.0f, HUGE_VALF, -HUGE_VALF, NAN, 1e30f, -1e30f, 1e-45f, 88.72283f, 88.72284f,
                              -87.33655f, -103.972f, -103.973f, -104.0f, -104.5f})
    x.push_back(special);
  // Every 211th float: both signs and every exponent.
  for (uint32_t bits = 0; bits < 0x43000000u; bits += 211)
    for (const uint32_t sign : {0u, 0x80000000u}) x.push_back(std::bit_cast<float>(bits | sign));
  y.resize(x.size());
  GetParam()->exponentials(x.data(), y.data(), x.size());
  double worst = 0;
  size_t at = 0;
  for (size_t i = 0; i < x.size(); ++i)
    if (const double units = units_off(y[i], std::exp(static_cast<double>(x[i]))); units > worst) worst = units, at = i;
  EXPECT_LE(worst, 1.1) << "exp(" << x[at] << ") = " << y[at];
  RecordProperty("worst_units", std::to_string(worst));
}

TEST_P(GatherRowsTest, CopiesTheRowsAndRefusesOthers) {
  HostTensor rows(DType::kI32, {3});
  rows.fill({4, 0, 4});
  for (const DType dtype : kOpTypes) {
    HostTensor x(dtype, {5, 21}), out(dtype, {3, 21});
    x.fill_random(1);
    ops.gather_rows(x, rows, out);
    for (const auto& [to, from] : {std::pair{0, 4}, {1, 0}, {2, 4}})
      EXPECT_TRUE(test::same_bits(out->rows(to, 1), x->rows(from, 1)));
    rows.set(1, 5);
    EXPECT_THROW(ops.gather_rows(x, rows, out), Error);
    rows.set(1, 0);
  }
}

TEST_P(InsertDrawnTest, ReplacesWhatIsNegative) {
  HostTensor ids(DType::kI32, {5}), drawn(DType::kI32, {3});
  ids.fill({7, -1, 0, -3, -2});
  drawn.fill({30, 0, 65535});
  ops.insert_drawn(ids, drawn);
  for (const auto& [place, id] : {std::pair{0, 7}, {1, 30}, {2, 0}, {3, 65535}, {4, 0}})
    EXPECT_EQ(ids.get(static_cast<size_t>(place)), id) << place;
  ids.set(4, -4);
  EXPECT_THROW(ops.insert_drawn(ids, drawn), Error);
  EXPECT_THROW(ops.insert_drawn(ids, HostTensor(DType::kF32, {3})), Error);
}

TEST_P(TopLogProbsTest, AgreesWithSoftmaxAlsoFarFromZero) {
  const auto x = test::golden_operator("softmax/x"), y = test::golden_operator("softmax/y");
  const int64_t rows = x.dim(0), vocab = x.dim(1);
  HostTensor logits(DType::kF32, {rows, vocab}), ids(DType::kI32, {rows, vocab}), log_probs(DType::kF32, {rows, vocab});
  logits.fill(x.values);
  ops.top_log_probs(logits, ids, log_probs);
  HostTensor probabilities(DType::kF32, {rows, vocab});
  std::vector<double> tolerance(y.values.size());
  for (size_t i = 0; i < log_probs.size(); ++i) {
    const size_t place = i / static_cast<size_t>(vocab) * static_cast<size_t>(vocab) + static_cast<size_t>(ids.get(i));
    probabilities.set(place, std::exp(log_probs.get(i)));
    // The rounding of the log is relative to the log, so it is absolute in the relative error of the probability.
    // softmax in fp32 has an error of 8 units.
    tolerance[place] = y.values[place] * 0x1p-24 * (8 + std::fabs(log_probs.get(i))) + 0x1p-148;
  }
  test::expect_close(probabilities, y.values, tolerance);
}

TEST_P(TopLogProbsTest, BestFirstTiesToTheLowerId) {
  HostTensor logits(DType::kF32, {2, 6}), ids(DType::kI32, {2, 4}), log_probs(DType::kF32, {2, 4});
  logits.fill({1, 5, -2, 5, 1, 0, 0, 0, 0, 0, 0, 0});
  ops.top_log_probs(logits, ids, log_probs);
  EXPECT_EQ(ids.values(), (std::vector<double>{1, 3, 0, 4, 0, 1, 2, 3}));
  EXPECT_NEAR(log_probs.get(4), -std::log(6.0), 1e-7);
  EXPECT_EQ(log_probs.get(0), log_probs.get(1));
}

TEST_P(TopLogProbsTest, NanAndInfinityKeepTheIdsValid) {
  HostTensor logits(DType::kF32, {4, 3}), ids(DType::kI32, {4, 3}), log_probs(DType::kF32, {4, 3});
  logits.fill({NAN, 1, NAN, NAN, NAN, NAN, -HUGE_VAL, 0, -HUGE_VAL, 1, HUGE_VAL, 2});
  ops.top_log_probs(logits, ids, log_probs);
  EXPECT_EQ(ids.values(), (std::vector<double>{1, 0, 2, 0, 1, 2, 1, 0, 2, 1, 2, 0}));
  EXPECT_TRUE(std::isnan(log_probs.get(0)));
  EXPECT_EQ(log_probs.get(6), 0);
  EXPECT_EQ(log_probs.get(7), -HUGE_VAL);
}

TEST_P(TargetLogProbsTest, IsTheEntryOfTopLogProbs) {
  constexpr int64_t kRows = 40, kVocab = 37;
  HostTensor logits(DType::kF32, {kRows, kVocab}), ids(DType::kI32, {kRows, kVocab}), all(DType::kF32, {kRows, kVocab});
  HostTensor targets(DType::kI32, {kRows}), log_probs(DType::kF32, {kRows}), likeliest(DType::kI32, {kRows});
  logits.fill_random(1, 3.0f);
  for (size_t i = 0; i < logits.size() / 2; ++i) logits.set(i, std::round(logits.get(i)));  // with ties
  ops.top_log_probs(logits, ids, all);
  for (size_t rank = 0; rank < static_cast<size_t>(kVocab); ++rank) {  // the targets are each row's rank-th best
    for (size_t row = 0; row < static_cast<size_t>(kRows); ++row) targets.set(row, ids.get(row * kVocab + rank));
    ops.target_log_probs(logits, targets, log_probs, likeliest);
    for (size_t row = 0; row < static_cast<size_t>(kRows); ++row) {
      EXPECT_EQ(log_probs.get(row), all.get(row * kVocab + rank));
      EXPECT_EQ(likeliest.get(row), rank == 0 ? 1 : 0) << row;
    }
  }
  targets.set(0, kVocab);
  EXPECT_THROW(ops.target_log_probs(logits, targets, log_probs, likeliest), Error);
  EXPECT_THROW(ops.target_log_probs(logits, targets, log_probs, ids), Error);
}

TEST_P(TargetLogProbsTest, NanCountsAsTheSmallest) {
  HostTensor logits(DType::kF32, {5, 3}), targets(DType::kI32, {5}), log_probs(DType::kF32, {5}),
      likeliest(DType::kI32, {5});
  logits.fill({NAN, 1, NAN, NAN, NAN, NAN, -HUGE_VAL, 0, -HUGE_VAL, 1, HUGE_VAL, 2, 0, -0.0, 0});
  targets.fill({1, 0, 1, 2, 1});
  ops.target_log_probs(logits, targets, log_probs, likeliest);
  EXPECT_EQ(likeliest.values(), (std::vector<double>{1, 1, 1, 0, 0}));
  EXPECT_TRUE(std::isnan(log_probs.get(0)));
  EXPECT_EQ(log_probs.get(2), 0);
}

TEST_P(RmsNormTest, NoTokensIsFineForEveryRowOperator) {
  const PackedBatch none({});
  HostTensor x(DType::kF32, {0, 6}), out(DType::kF32, {0, 2}), weight(DType::kF32, {6}), taps(DType::kF32, {2, 3});
  HostTensor ids(DType::kI32, {0}), table(DType::kF32, {4, 6}), logits(DType::kF32, {0, 2}), top(DType::kI32, {0, 2});
  ops.embed(ids, table, x);
  ops.rms_norm(x, weight, 1e-5f, x);
  ops.short_conv(x, taps, {}, none.batch, out);
  ops.gather_rows(table, ids, x);
  ops.insert_drawn(ids, ids);
  ops.top_log_probs(logits, top, out);
  const HostTensor log_probs(DType::kF32, {0});
  ops.target_log_probs(logits, ids, log_probs, ids);
}

std::string simd_name(const testing::TestParamInfo<const Simd*>& info) { return info.param->name; }
INSTANTIATE_TEST_SUITE_P(Simd, ExponentialTest, testing::ValuesIn(available_simd()), simd_name);
INSTANTIATE_TEST_SUITE_P(Simd, EmbedTest, testing::ValuesIn(available_simd()), simd_name);
INSTANTIATE_TEST_SUITE_P(Simd, GatherRowsTest, testing::ValuesIn(available_simd()), simd_name);
INSTANTIATE_TEST_SUITE_P(Simd, InsertDrawnTest, testing::ValuesIn(available_simd()), simd_name);
INSTANTIATE_TEST_SUITE_P(Simd, RmsNormTest, testing::ValuesIn(available_simd()), simd_name);
INSTANTIATE_TEST_SUITE_P(Simd, ShortConvTest, testing::ValuesIn(available_simd()), simd_name);
INSTANTIATE_TEST_SUITE_P(Simd, SwigluTest, testing::ValuesIn(available_simd()), simd_name);
INSTANTIATE_TEST_SUITE_P(Simd, TargetLogProbsTest, testing::ValuesIn(available_simd()), simd_name);
INSTANTIATE_TEST_SUITE_P(Simd, TopLogProbsTest, testing::ValuesIn(available_simd()), simd_name);

}  // namespace
}  // namespace lfm2
