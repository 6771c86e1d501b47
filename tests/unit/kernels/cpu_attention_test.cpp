// The operators qk_norm_rope and attention of the CPU backend, compared with transformers and with double precision.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/cpu/cpu_ops.h"
#include "support/golden.h"
#include "support/host_tensor.h"
#include "support/index_cast.h"
#include "support/packed_batch.h"

namespace lfm2 {
namespace {

using test::at;
using test::HostTensor;
using test::PackedBatch;

constexpr std::initializer_list<DType> kTypes = {DType::kF32, DType::kBf16, DType::kF16};

struct AttentionFixture : ::testing::Test {
  ThreadPool pool{3};
  CpuOps ops{pool, *available_simd().front()};
};
using QkNormRopeTest = AttentionFixture;
using AttentionTest = AttentionFixture;

TEST_F(QkNormRopeTest, RotatesAsTransformers) {
  const auto x = test::golden_operator("rope/x"), y = test::golden_operator("rope/y");
  const auto theta = static_cast<float>(test::golden_operator("rope/theta").values.at(0));
  const int64_t samples = x.dim(0), length = x.dim(1), heads = x.dim(2), d = x.dim(3);
  const AttentionShape shape{heads - 1, 1, d};  // the last head of x serves as the key head
  const PackedBatch packed(std::vector<int32_t>(at(samples), static_cast<int32_t>(length)));
  HostTensor qkv(DType::kF32, {packed.tokens(), (heads + 1) * d}), ones(DType::kF32, {d});
  ones.fill(1.0);
  qkv.fill_random(1);
  // The norm only scales a head and the rotation is linear, so the result is transformers' rotation times that factor.
  std::vector<double> expected = qkv.values(), tolerance(expected.size(), 0.0);
  for (int64_t token = 0; token < packed.tokens(); ++token)
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t from = (token * heads + head) * d, to = (token * (heads + 1) + head) * d;
      double sum = 0;
      for (int64_t i = 0; i < d; ++i) sum += std::pow(x.values[at(from + i)], 2);
      const double factor = 1 / std::sqrt(sum / static_cast<double>(d) + 1e-5);
      for (int64_t i = 0; i < d; ++i) {
        qkv.set(at(to + i), x.values[at(from + i)]);
        expected[at(to + i)] = y.values[at(from + i)] * factor;
        const double pair = std::hypot(x.values[at(from + i)], x.values[at(from + (i + d / 2) % d)]) * factor;
        tolerance[at(to + i)] = 12 * 0x1p-24 * pair;
      }
    }
  ops.qk_norm_rope(qkv, ones, ones, 1e-5f, theta, shape, packed.batch);
  test::expect_close(qkv, expected, tolerance);
}

TEST_F(QkNormRopeTest, EveryTypeAgainstDoublePrecisionAtFarPositions) {
  const AttentionShape shape{6, 2, 24};
  const int64_t d = shape.head_dim, half = d / 2, columns = shape.qkv_columns();
  PackedBatch packed({1, 5, 2});
  for (size_t t = 0; t < 8; ++t) packed.positions.set(t, std::vector{0., 1., 2., 3., 77., 1000., 30000., 8191.}[t]);
  packed.batch.max_length = 30001;
  for (const DType act : kTypes)
    for (const float theta : {10000.0f, 1e6f}) {
      SCOPED_TRACE(fmt::format("{} theta {}", name(act), theta));
      HostTensor qkv(act, {8, columns}), q_weight(DType::kBf16, {d}), k_weight(DType::kF32, {d});
      qkv.fill_random(1);
      q_weight.fill_random(2);
      k_weight.fill_random(3);
      std::vector<double> expected = qkv.values(), tolerance(expected.size(), 0.0);
      for (int64_t token = 0; token < 8; ++token)
        for (int64_t head = 0; head < 8; ++head) {
          const HostTensor& weight = head < 6 ? q_weight : k_weight;
          const int64_t first = token * columns + head * d;
          double sum = 0;
          for (int64_t i = 0; i < d; ++i) sum += std::pow(qkv.get(at(first + i)), 2);
          const double factor = 1 / std::sqrt(sum / static_cast<double>(d) + 1e-5);
          for (int64_t i = 0; i < half; ++i) {
            const double x = qkv.get(at(first + i)) * factor * weight.get(at(i));
            const double y = qkv.get(at(first + half + i)) * factor * weight.get(at(half + i));
            const double frequency =
                std::pow(static_cast<double>(theta), -2.0 * static_cast<double>(i) / static_cast<double>(d));
            const double angle = packed.positions.get(at(token)) * frequency;
            expected[at(first + i)] = x * std::cos(angle) - y * std::sin(angle);
            expected[at(first + half + i)] = y * std::cos(angle) + x * std::sin(angle);
            // The exponent of the frequency, the power, its reciprocal and the angle are rounded to fp32, as in
            // transformers.
            const double angle_error = angle * 0x1p-24 * (4 + std::log(static_cast<double>(theta)));
            for (const int64_t j : {first + i, first + half + i})
              tolerance[at(j)] =
                  std::hypot(x, y) * (12 * 0x1p-24 + angle_error) + test::store_error(act, expected[at(j)]);
          }
        }
      ops.qk_norm_rope(qkv, q_weight, k_weight, 1e-5f, theta, shape, packed.batch);
      test::expect_close(qkv, expected, tolerance);
    }
}

TEST_F(QkNormRopeTest, AnglesAreRoundedWhereTransformersRoundsThem) {
  RopeTable table;
  table.extend(1e6f, 64, 10);
  table.extend(1e6f, 64, 128000);  // the table grows
  for (const int64_t i : {1, 7, 20, 31}) {
    const auto power = static_cast<float>(std::pow(1e6, static_cast<double>(static_cast<float>(2 * i) / 64.0f)));
    const float angle = 127999.0f * (1.0f / power);
    EXPECT_EQ(table.cosines(127999)[i], static_cast<float>(std::cos(static_cast<double>(angle))));
    EXPECT_EQ(table.sines(127999)[i], static_cast<float>(std::sin(static_cast<double>(angle))));
  }
  table.extend(1e4f, 64, 2);  // another model's parameters
  EXPECT_NEAR(static_cast<double>(table.cosines(1)[16]), std::cos(std::pow(1e4, -0.5)), 1e-7);
}

// Attention in double precision, and the largest error that fp32 may make.
void attention_reference(const HostTensor& qkv, AttentionShape shape, const PackedBatch& samples, DType out,
                         std::vector<double>& expected, std::vector<double>& tolerance) {
  const int64_t d = shape.head_dim, columns = shape.qkv_columns();
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  for (int64_t token = 0; token < samples.tokens(); ++token)
    for (int64_t head = 0; head < shape.heads; ++head) {
      const int64_t kv = head / (shape.heads / shape.kv_heads);
      const int64_t first = token - static_cast<int64_t>(samples.positions.get(at(token)));
      std::vector<double> scores;
      double largest = -HUGE_VAL, magnitude = 0, sum = 0;
      for (int64_t key = first; key <= token; ++key) {
        double score = 0, absolute = 0;
        for (int64_t i = 0; i < d; ++i) {
          const double term =
              qkv.get(at(token * columns + head * d + i)) * qkv.get(at(key * columns + (shape.heads + kv) * d + i));
          score += term;
          absolute += std::fabs(term);
        }
        scores.push_back(score * scale);
        largest = std::max(largest, scores.back());
        magnitude = std::max(magnitude, absolute * scale);
      }
      for (double& score : scores) sum += score = std::exp(score - largest);
      for (int64_t i = 0; i < d; ++i) {
        double value = 0, absolute = 0;
        for (int64_t key = first; key <= token; ++key) {
          const double v = qkv.get(at(key * columns + (shape.heads + shape.kv_heads + kv) * d + i));
          value += scores[at(key - first)] / sum * v;
          absolute += scores[at(key - first)] / sum * std::fabs(v);
        }
        expected.push_back(value);
        // An error of a score (lane, fold, scale, difference) is a relative error of its weight, above and below the
        // fraction bar. Then come the error of the exponential and those of the additions over the keys.
        const double score_error = (static_cast<double>(d) / 16 + 8) * magnitude;
        const double steps = 2 * score_error + 6 + static_cast<double>(std::min<size_t>(scores.size(), 1024));
        tolerance.push_back(steps * 0x1p-24 * absolute + test::store_error(out, value));
      }
    }
}

TEST_F(AttentionTest, AgreesWithTransformers) {
  const auto q = test::golden_operator("gqa_attention/q"), k = test::golden_operator("gqa_attention/k"),
             v = test::golden_operator("gqa_attention/v");
  const auto y = test::golden_operator("gqa_attention/y");
  const AttentionShape shape{q.dim(2), k.dim(2), q.dim(3)};
  const PackedBatch packed(std::vector<int32_t>(at(q.dim(0)), static_cast<int32_t>(q.dim(1))));
  HostTensor qkv(DType::kF32, {packed.tokens(), shape.qkv_columns()});
  HostTensor out(DType::kF32, {packed.tokens(), shape.heads * shape.head_dim});
  std::vector<double> joined;
  for (int64_t token = 0; token < packed.tokens(); ++token)
    for (const auto* part : {&q, &k, &v}) {
      const int64_t width = part->dim(2) * part->dim(3);
      joined.insert(joined.end(), part->values.begin() + token * width, part->values.begin() + (token + 1) * width);
    }
  qkv.fill(joined);
  ops.attention(qkv, shape, packed.batch, out);
  std::vector<double> expected, tolerance;
  attention_reference(qkv, shape, packed, DType::kF32, expected, tolerance);
  test::expect_close(out, expected, tolerance);
  for (double& bound : tolerance) bound *= 2;  // the golden file is itself computed in fp32
  test::expect_close(out, y.values, tolerance);
}

TEST_F(AttentionTest, EveryTypeShapeAndLength) {
  const PackedBatch packed({1, 30, 2, 0, 9});
  for (const DType act : kTypes)
    for (const AttentionShape shape : {AttentionShape{4, 2, 8}, {6, 1, 24}, {8, 2, 64}, {3, 3, 82}}) {
      SCOPED_TRACE(fmt::format("{} heads {} {} {}", name(act), shape.heads, shape.kv_heads, shape.head_dim));
      HostTensor qkv(act, {packed.tokens(), shape.qkv_columns()}),
          out(act, {packed.tokens(), shape.heads * shape.head_dim});
      qkv.fill_random(1, 1.5f);
      std::vector<double> expected, tolerance;
      attention_reference(qkv, shape, packed, act, expected, tolerance);
      for (const Simd* simd : available_simd()) {
        SCOPED_TRACE(simd->name);
        CpuOps(pool, *simd).attention(qkv, shape, packed.batch, out);
        test::expect_close(out, expected, tolerance);
      }
    }
}

TEST_F(AttentionTest, LongSampleAndLargeScores) {
  const PackedBatch packed({1300});
  const AttentionShape shape{2, 1, 16};
  HostTensor qkv(DType::kF32, {1300, 64}), out(DType::kF32, {1300, 32});
  qkv.fill_random(1, 6.0f);  // scores beyond 100 overflow unless the largest is subtracted
  std::vector<double> expected, tolerance;
  attention_reference(qkv, shape, packed, DType::kF32, expected, tolerance);
  ops.attention(qkv, shape, packed.batch, out);
  test::expect_close(out, expected, tolerance);
}

TEST_F(AttentionTest, ASampleHasTheSameBitsAloneAndInABatchAndWithAnyThreads) {
  const AttentionShape shape{8, 2, 24};
  const PackedBatch packed({3, 40, 5}), alone({40});
  HostTensor qkv(DType::kF32, {48, shape.qkv_columns()}), expected(DType::kF32, {48, 192}), out(DType::kF32, {48, 192});
  HostTensor part(DType::kF32, {40, 192});
  qkv.fill_random(1);
  ops.attention(qkv, shape, packed.batch, expected);
  ops.attention(qkv->rows(3, 40), shape, alone.batch, part);
  EXPECT_TRUE(test::same_bits(part, expected->rows(3, 40)));
  ThreadPool one(1), two(2);
  std::vector<const Simd*> tables = available_simd();
  if (tables.size() > 1) tables.pop_back();  // the last table, "portable", has no fused multiply-add on x86
  for (ThreadPool* threads : {&one, &two})
    for (const Simd* simd : tables) {
      CpuOps(*threads, *simd).attention(qkv, shape, packed.batch, out);
      EXPECT_TRUE(test::same_bits(out, expected)) << threads->threads() << " threads, " << simd->name;
    }
}

TEST_F(AttentionTest, WantedTokensHaveTheirBitsAndOthersAreLeftOut) {
  const AttentionShape shape{8, 2, 24};
  PackedBatch packed({1, 40, 0, 3, 4});
  HostTensor qkv(DType::kF32, {48, shape.qkv_columns()}), expected(DType::kF32, {48, 192}), out(DType::kF32, {48, 192});
  qkv.fill_random(1);
  ops.attention(qkv, shape, packed.batch, expected);
  packed.batch.wanted = 3;
  ops.attention(qkv, shape, packed.batch, out);
  const HostTensor none(DType::kF32, {1, 192});
  for (size_t sample = 0; sample < packed.lengths.size(); ++sample)
    for (int64_t token = packed.offset(sample); token < packed.offset(sample + 1); ++token) {
      const Tensor row = token + 3 < packed.offset(sample + 1) ? Tensor(none) : expected->rows(token, 1);
      EXPECT_TRUE(test::same_bits(out->rows(token, 1), row)) << token;
    }
}

TEST_F(AttentionTest, NoTokens) {
  const PackedBatch none({});
  const AttentionShape shape{4, 2, 8};
  HostTensor qkv(DType::kF32, {0, 64}), out(DType::kF32, {0, 32}), weight(DType::kF32, {8});
  ops.qk_norm_rope(qkv, weight, weight, 1e-5f, 1e6f, shape, none.batch);
  ops.attention(qkv, shape, none.batch, out);
}

TEST_F(AttentionTest, RefusesAPositionBeforeTheBatch) {
  PackedBatch packed({2});
  packed.positions.set(0, 1);
  const AttentionShape shape{4, 2, 8};
  HostTensor qkv(DType::kF32, {2, 64}), out(DType::kF32, {2, 32});
  EXPECT_THROW(ops.attention(qkv, shape, packed.batch, out), Error);
}

}  // namespace
}  // namespace lfm2
