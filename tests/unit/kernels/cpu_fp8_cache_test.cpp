// The rule of kernels/fp8_cache.h, and the cache that append_keys_values fills by it.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/fp8_cache.h"
#include "support/cached_steps.h"

namespace lfm2 {
namespace {

using namespace test;

// Of every exponent, the mantissas at the edge: the scale is the least one for which the quotient does not round beyond
// 448.
TEST(Fp8CacheTest, TheScaleIsTheLeastThatFits) {
  for (const DType act : {DType::kF16, DType::kBf16})
    for (int power = -148; power < 128; ++power)
      for (const double mantissa : {1.0, 1.25, 1.75, 1.8125, 1.8125 + 0x1p-23, 1.875, 2 - 0x1p-23}) {
        const double largest = std::ldexp(mantissa, power);
        const int exponent = scale_exponent(static_cast<float>(largest), max_scale_exponent(act));
        const auto fits = [&](int e) {
          return std::ldexp(static_cast<double>(static_cast<float>(largest)), 127 - e) <= 464;
        };
        EXPECT_GE(exponent, 112);
        EXPECT_LE(exponent, act == DType::kF16 ? 134 : 246);
        EXPECT_TRUE(fits(exponent) || exponent == max_scale_exponent(act)) << largest;
        EXPECT_TRUE(!fits(exponent - 1) || exponent == 112) << largest;
        EXPECT_EQ(static_cast<double>(scale_of(exponent)), std::ldexp(1.0, exponent - 127));
        EXPECT_EQ(static_cast<double>(inverse_scale_of(exponent)), std::ldexp(1.0, 127 - exponent));
      }
}

struct Fp8AppendTest : ::testing::Test {
  ThreadPool pool{2};
  CpuOps ops{pool, *available_simd().front()};
};

// Rounding again changes nothing, neither elements nor scales. So a cache may be filled from what is rounded already.
TEST_F(Fp8AppendTest, FromRoundedKeysAndValuesIsTheSame) {
  const PackedBatch samples({40, 3, 17});
  for (const DType act : kFloatTypes)
    for (const AttentionShape shape : {AttentionShape{8, 2, 24, true}, {4, 4, 64, true}}) {
      HostTensor qkv(act, {samples.tokens(), shape.qkv_columns()}), rounded(act, {samples.tokens(), qkv->dim(1)});
      for (const float spread : {1e-7f, 0.3f, 100.0f}) {
        qkv.fill_random(1, spread);
        rounded.fill(reference::fp8_keys_values(qkv, shape));
        const CacheTensors<HostTensor> first(shape, act, 70, 1), second(shape, act, 70, 1);
        for_each_step(samples, {1, 9, 2}, [&](const CacheStep& step) {
          ops.append_keys_values(step.take(qkv), shape, step.batch, first.cache());
          ops.append_keys_values(step.take(rounded), shape, step.batch, second.cache());
        });
        EXPECT_TRUE(same_bits(first.keys, second.keys) && same_bits(first.values, second.values));
        EXPECT_TRUE(same_bits(first.key_scales, second.key_scales) &&
                    same_bits(first.value_scales, second.value_scales));
      }
    }
}

TEST_F(Fp8AppendTest, RefusesACacheOfAnotherType) {
  const PackedBatch samples({2});
  const AttentionShape plain{4, 2, 8}, fp8{4, 2, 8, true};
  HostTensor qkv(DType::kF32, {2, plain.qkv_columns()});
  qkv.fill_random(1);
  const CacheTensors<HostTensor> of_floats(plain, DType::kF32, 3, 1), of_fp8(fp8, DType::kF32, 3, 1);
  for_each_step(samples, {1, 2, 1}, [&](const CacheStep& step) {
    const HostTensor rows = step.take(qkv);
    EXPECT_THROW(ops.append_keys_values(rows, fp8, step.batch, of_floats.cache()), Error);
    EXPECT_THROW(ops.append_keys_values(rows, plain, step.batch, of_fp8.cache()), Error);
    EXPECT_THROW(ops.append_keys_values(rows, fp8, step.batch, {of_fp8.keys, of_fp8.values}), Error);
  });
}

}  // namespace
}  // namespace lfm2
