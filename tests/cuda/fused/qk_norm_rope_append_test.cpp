// qk_norm_rope_append on the GPU has the bits of its two operators one after the other, in qkv and in the cache.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cuda/sequences.h"
#include "support/cache_tensors.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaQkNormRopeAppendTest : ::testing::Test {
  // The rows and the cache that a batch leaves.
  struct Result {
    HostTensor qkv, keys, values, key_scales, value_scales;
  };
  template <class F>
  static Result run(const HostTensor& qkv, const Sequences& sequences, AttentionShape shape, int64_t page,
                    const F& operators) {
    const DType act = qkv->dtype;
    CacheTensors<HostTensor> host(shape, act, sequences.pages(), page);
    const CacheTensors<DeviceTensor> cache(shape, act, sequences.pages(), page);
    Result result{HostTensor(act, {qkv->dim(0), qkv->dim(1)}), std::move(host.keys), std::move(host.values),
                  std::move(host.key_scales), std::move(host.value_scales)};
    const DeviceTensor rows(qkv);
    on_gpu([&](Ops& ops) { operators(ops, rows, cache.cache()); });
    rows.fetch(result.qkv);
    cache.keys.fetch(result.keys);
    cache.values.fetch(result.values);
    cache.key_scales.fetch(result.key_scales);
    cache.value_scales.fetch(result.value_scales);
    return result;
  }

  static void check(DType act, AttentionShape shape, int64_t page, const std::vector<int64_t>& lengths, uint32_t seed) {
    SCOPED_TRACE(fmt::format("{} heads {} {} {}{}, pages of {}, {} samples", name(act), shape.heads, shape.kv_heads,
                             shape.head_dim, shape.fp8_cache ? ", fp8" : "", page, lengths.size()));
    Sequences sequences(lengths, page, seed);
    HostTensor qkv(act, {sequences.packed.tokens(), shape.qkv_columns()}), q_weight(act, {shape.head_dim}),
        k_weight(DType::kF32, {shape.head_dim});
    qkv.fill_random(seed);
    q_weight.fill_random(seed + 1);
    k_weight.fill_random(seed + 2);
    const DeviceTensor q(q_weight), k(k_weight);
    while (!sequences.finished()) {
      const auto parts = sequences.random_parts(2000);
      if (parts.empty()) continue;
      sequences.next(parts);
      const HostTensor rows = sequences.take(qkv);
      const Batch& batch = sequences.batch;
      const Result apart =
          run(rows, sequences, shape, page, [&](Ops& ops, const Tensor& x, const KeyValueCache& cache) {
            ops.qk_norm_rope(x, q, k, 1e-5f, {1e6f}, shape, batch);
            ops.append_keys_values(x, shape, batch, cache);
          });
      const Result together =
          run(rows, sequences, shape, page, [&](Ops& ops, const Tensor& x, const KeyValueCache& cache) {
            ops.qk_norm_rope_append(x, q, k, 1e-5f, {1e6f}, shape, batch, cache);
          });
      EXPECT_TRUE(same_bits(together.qkv, apart.qkv));
      EXPECT_TRUE(same_bits(together.keys, apart.keys));
      EXPECT_TRUE(same_bits(together.values, apart.values));
      EXPECT_TRUE(same_bits(together.key_scales, apart.key_scales));
      EXPECT_TRUE(same_bits(together.value_scales, apart.value_scales));
    }
  }
};

// Heads of one lane and of sixteen, and such as no octets fit.
TEST_F(CudaQkNormRopeAppendTest, EveryShapeAndPage) {
  uint32_t seed = 0;
  for (const DType act : kFloatTypes)
    for (const AttentionShape shape : {AttentionShape{4, 2, 64},
                                       {32, 8, 64},
                                       {2, 1, 16},
                                       {3, 3, 256},
                                       {6, 1, 24},
                                       {5, 1, 2},
                                       {4, 2, 64, true},
                                       {32, 8, 64, true},
                                       {2, 1, 16, true},
                                       {3, 3, 256, true},
                                       {6, 1, 24, true},
                                       {5, 1, 2, true},
                                       {16, 4, 128, false, 0, true},
                                       {16, 4, 128, true, 0, true},
                                       {4, 2, 16, false, 0, true},
                                       {3, 1, 24, true, 0, true}})
      for (const int64_t page : {1, 16, 50}) check(act, shape, page, {1, 70, 33, 2, 9}, ++seed);
}

// Many tokens have blocks of several.
TEST_F(CudaQkNormRopeAppendTest, ManyTokens) {
  for (const DType act : kFloatTypes)
    for (const bool fp8 : {false, true}) check(act, {32, 8, 64, fp8}, 256, {1500, 1300, 1, 1021}, 7);
}

}  // namespace
}  // namespace lfm2
