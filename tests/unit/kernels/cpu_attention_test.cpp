// The operators qk_norm_rope and attention of the CPU backend, compared with transformers and with their specification.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/cpu/cpu_ops.h"
#include "support/attention_cases.h"
#include "support/block_attention_cases.h"
#include "support/row_cases.h"

namespace lfm2 {
namespace {

using test::HostTensor;
using test::PackedBatch;

struct AttentionFixture : ::testing::Test {
  ThreadPool pool{3};
  CpuOps ops{pool, *available_simd().front()};
  test::AllCpus cpus;
};
using QkNormRopeTest = AttentionFixture;
using AttentionTest = AttentionFixture;

TEST_F(QkNormRopeTest, RotatesAsTransformers) { test::check_rope_of_transformers(*cpus.all.front()); }

TEST_F(QkNormRopeTest, EveryTypeAtFarPositions) { test::check_qk_norm_rope(*cpus.all.front(), 30001); }

TEST_F(QkNormRopeTest, TurnsTheFirstPairs) {
  test::check_qk_norm_rope(*cpus.all.front(), 30001, test::partial_rope_cases());
}

TEST_F(QkNormRopeTest, RoundsKeysAndValuesToFp8) {
  for (test::OpsUnderTest* cpu : cpus.all) test::check_fp8_keys_values(*cpu);
}

TEST_F(QkNormRopeTest, AnglesAreRoundedWhereTransformersRoundsThem) {
  RopeTable table({1e6f}, 64);
  table.extend(10);
  table.extend(128000);  // the table grows
  for (const int64_t i : {1, 7, 20, 31}) {
    const auto power = static_cast<float>(std::pow(1e6, static_cast<double>(static_cast<float>(2 * i) / 64.0f)));
    const float angle = 127999.0f * (1.0f / power);
    EXPECT_EQ(table.cosines(127999)[i], static_cast<float>(std::cos(static_cast<double>(angle))));
    EXPECT_EQ(table.sines(127999)[i], static_cast<float>(std::sin(static_cast<double>(angle))));
  }
  EXPECT_FALSE(table.is_of({1e4f}, 64) || table.is_of({1e6f, 8}, 64) || table.is_of({1e6f}, 128));
}

TEST_F(AttentionTest, AgreesWithTransformers) { test::check_attention_of_transformers(cpus.all); }

TEST_F(AttentionTest, EveryTypeShapeAndLength) { test::check_attention(cpus.all); }

TEST_F(AttentionTest, ReadsTheKeysOfItsWindow) { test::check_attention(cpus.all, test::window_cases()); }

TEST_F(AttentionTest, RowsOfDraftersReadToTheEndOfTheirBlock) { test::check_block_attention(cpus.all, 70); }

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
  packed.batch.output_tokens = 3;
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
  ops.qk_norm_rope(qkv, weight, weight, 1e-5f, {1e6f}, shape, none.batch);
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
