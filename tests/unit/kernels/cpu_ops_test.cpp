// The row-wise operators of the CPU backend, compared with transformers and with their specification.
#include "kernels/cpu/cpu_ops.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "support/product_cases.h"
#include "support/row_cases.h"
#include "support/sampling_cases.h"

namespace lfm2 {
namespace {

using test::HostTensor;
using test::PackedBatch;

struct CpuOpsFixture : ::testing::TestWithParam<const Simd*> {
  ThreadPool pool{3};
  CpuOps ops{pool, *GetParam()};
  test::CpuUnderTest cpu{*GetParam()};
};
using EmbedTest = CpuOpsFixture;
using RmsNormTest = CpuOpsFixture;
using AddNormTest = CpuOpsFixture;
using GateHeadsTest = CpuOpsFixture;
using ShortConvTest = CpuOpsFixture;
using SwigluTest = CpuOpsFixture;
using GatherRowsTest = CpuOpsFixture;
using InsertDrawnTest = CpuOpsFixture;
using ExponentialTest = CpuOpsFixture;
using TopLogProbsTest = CpuOpsFixture;
using TargetLogProbsTest = CpuOpsFixture;

TEST_P(EmbedTest, CopiesOrConvertsTheRows) { test::check_embed(cpu); }

TEST_P(EmbedTest, RefusesAnIdOutOfRange) {
  HostTensor ids(DType::kI32, {1}), table(DType::kF32, {4, 33}), out(DType::kF32, {1, 33});
  ids.fill(4);
  EXPECT_THROW(ops.embed(ids, table, out), Error);
}

TEST_P(RmsNormTest, AgreesWithTransformers) { test::check_rms_norm_of_transformers(cpu); }

TEST_P(RmsNormTest, EveryTypeInPlaceAndOddWidths) { test::check_rms_norm(cpu); }

TEST_P(RmsNormTest, RefusesOtherShapesAndIntegers) {
  const HostTensor weight(DType::kF32, {5}), integer_weight(DType::kI32, {5});
  for (const int64_t rows : {0, 3}) {
    const HostTensor x(DType::kF32, {rows, 5}), narrower(DType::kF32, {rows, 4}), integers(DType::kI32, {rows, 5});
    EXPECT_THROW(ops.rms_norm(x, weight, 1e-5f, narrower), Error) << rows;
    EXPECT_THROW(ops.rms_norm(integers, weight, 1e-5f, integers), Error) << rows;
    EXPECT_THROW(ops.rms_norm(x, integer_weight, 1e-5f, x), Error) << rows;
  }
}

TEST_P(AddNormTest, AddsTheNormAndMakesTheNextOne) { test::check_add_norm(cpu); }

TEST_P(AddNormTest, RefusesOtherShapes) {
  const HostTensor x(DType::kF32, {3, 5}), weight(DType::kF32, {5}), narrower(DType::kF32, {3, 4});
  EXPECT_THROW(ops.add_norm(x, weight, 1e-5f, narrower, {}, 0, {}), Error);
  EXPECT_THROW(ops.add_norm(x, weight, 1e-5f, x, weight, 0, narrower), Error);
}

TEST_P(GateHeadsTest, EveryTypeAndShape) { test::check_gate_heads(cpu); }

TEST_P(GateHeadsTest, RefusesOtherShapes) {
  const HostTensor qkv(DType::kF32, {3, 4 * 2 + 2}), out(DType::kF32, {3, 4}), narrower(DType::kF32, {3, 2});
  EXPECT_THROW(ops.gate_heads(qkv, {2, 1, 2, false, 0, true}, narrower), Error);
  EXPECT_THROW(ops.gate_heads(qkv, {2, 1, 2}, out), Error);  // without gates
}

TEST_P(ShortConvTest, AgreesWithTransformers) { test::check_short_conv_of_transformers(cpu); }

TEST_P(ShortConvTest, EveryTypeAndLength) { test::check_short_conv(cpu); }

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

TEST_P(GatherRowsTest, CopiesTheRows) { test::check_gather_rows(cpu); }

TEST_P(GatherRowsTest, RefusesARowOutOfRange) {
  HostTensor rows(DType::kI32, {3}), x(DType::kBf16, {5, 21}), out(DType::kBf16, {3, 21});
  rows.fill({4, 5, 4});
  EXPECT_THROW(ops.gather_rows(x, rows, out), Error);
}

TEST_P(InsertDrawnTest, ReplacesWhatIsNegative) { test::check_insert_drawn(cpu); }

TEST_P(InsertDrawnTest, RefusesWhatWasNotDrawn) {
  HostTensor ids(DType::kI32, {5}), drawn(DType::kI32, {3});
  ids.fill({7, -1, 0, -3, -4});
  drawn.fill({30, 0, 65535});
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

TEST_P(TopLogProbsTest, NanAndInfinity) { test::check_log_probs_of_nans(cpu); }

TEST_P(TargetLogProbsTest, IsTheEntryOfTopLogProbs) {
  constexpr int64_t kRows = 40, kVocab = 37;
  HostTensor logits(DType::kF32, {kRows, kVocab}), ids(DType::kI32, {kRows, kVocab}), all(DType::kF32, {kRows, kVocab});
  HostTensor targets(DType::kI32, {kRows}), log_probs(DType::kF32, {kRows}), is_greedy(DType::kI32, {kRows});
  logits.fill_random(1, 3.0f);
  for (size_t i = 0; i < logits.size() / 2; ++i) logits.set(i, std::round(logits.get(i)));  // with ties
  ops.top_log_probs(logits, ids, all);
  for (size_t rank = 0; rank < static_cast<size_t>(kVocab); ++rank) {  // the targets are each row's rank-th best
    for (size_t row = 0; row < static_cast<size_t>(kRows); ++row) targets.set(row, ids.get(row * kVocab + rank));
    ops.target_log_probs(logits, targets, log_probs, is_greedy);
    for (size_t row = 0; row < static_cast<size_t>(kRows); ++row) {
      EXPECT_EQ(log_probs.get(row), all.get(row * kVocab + rank));
      EXPECT_EQ(is_greedy.get(row), rank == 0 ? 1 : 0) << row;
    }
  }
  targets.set(0, kVocab);
  EXPECT_THROW(ops.target_log_probs(logits, targets, log_probs, is_greedy), Error);
  EXPECT_THROW(ops.target_log_probs(logits, targets, log_probs, ids), Error);
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
INSTANTIATE_TEST_SUITE_P(Simd, AddNormTest, testing::ValuesIn(available_simd()), simd_name);
INSTANTIATE_TEST_SUITE_P(Simd, EmbedTest, testing::ValuesIn(available_simd()), simd_name);
INSTANTIATE_TEST_SUITE_P(Simd, GateHeadsTest, testing::ValuesIn(available_simd()), simd_name);
INSTANTIATE_TEST_SUITE_P(Simd, GatherRowsTest, testing::ValuesIn(available_simd()), simd_name);
INSTANTIATE_TEST_SUITE_P(Simd, InsertDrawnTest, testing::ValuesIn(available_simd()), simd_name);
INSTANTIATE_TEST_SUITE_P(Simd, RmsNormTest, testing::ValuesIn(available_simd()), simd_name);
INSTANTIATE_TEST_SUITE_P(Simd, ShortConvTest, testing::ValuesIn(available_simd()), simd_name);
INSTANTIATE_TEST_SUITE_P(Simd, SwigluTest, testing::ValuesIn(available_simd()), simd_name);
INSTANTIATE_TEST_SUITE_P(Simd, TargetLogProbsTest, testing::ValuesIn(available_simd()), simd_name);
INSTANTIATE_TEST_SUITE_P(Simd, TopLogProbsTest, testing::ValuesIn(available_simd()), simd_name);

}  // namespace
}  // namespace lfm2
