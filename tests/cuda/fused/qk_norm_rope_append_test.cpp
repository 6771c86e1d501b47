// qk_norm_rope_append on the GPU has the bits of its two operators one after the other, in qkv and in the cache.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cuda/sequences.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaQkNormRopeAppendTest : ::testing::Test {
  // The rows and the cache that a batch leaves.
  struct Result {
    HostTensor qkv, keys, values;
  };
  template <class F>
  static Result run(const HostTensor& qkv, const Sequences& sequences, AttentionShape shape, int64_t page,
                    const F& operators) {
    const std::initializer_list<int64_t> cache{sequences.pages(), page, shape.kv_heads, shape.head_dim};
    const DType act = qkv->dtype;
    Result result{HostTensor(act, {qkv->dim(0), qkv->dim(1)}), nans(act, cache), nans(act, cache)};
    const DeviceTensor rows(qkv), keys(result.keys), values(result.values);
    on_gpu([&](Ops& ops) { operators(ops, rows, KeyValueCache{keys, values}); });
    rows.fetch(result.qkv);
    keys.fetch(result.keys);
    values.fetch(result.values);
    return result;
  }

  static void check(DType act, AttentionShape shape, int64_t page, const std::vector<int64_t>& lengths, uint32_t seed) {
    SCOPED_TRACE(fmt::format("{} heads {} {} {}, pages of {}, {} samples", name(act), shape.heads, shape.kv_heads,
                             shape.head_dim, page, lengths.size()));
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
            ops.qk_norm_rope(x, q, k, 1e-5f, 1e6f, shape, batch);
            ops.append_keys_values(x, shape, batch, cache);
          });
      const Result together =
          run(rows, sequences, shape, page, [&](Ops& ops, const Tensor& x, const KeyValueCache& cache) {
            ops.qk_norm_rope_append(x, q, k, 1e-5f, 1e6f, shape, batch, cache);
          });
      EXPECT_TRUE(same_bits(together.qkv, apart.qkv));
      EXPECT_TRUE(same_bits(together.keys, apart.keys));
      EXPECT_TRUE(same_bits(together.values, apart.values));
    }
  }
};

// Heads of one lane and of sixteen, and such as no octets fit.
TEST_F(CudaQkNormRopeAppendTest, EveryShapeAndPage) {
  uint32_t seed = 0;
  for (const DType act : kFloatTypes)
    for (const AttentionShape shape :
         {AttentionShape{4, 2, 64}, {32, 8, 64}, {2, 1, 16}, {3, 3, 256}, {6, 1, 24}, {5, 1, 2}})
      for (const int64_t page : {1, 16, 50}) check(act, shape, page, {1, 70, 33, 2, 9}, ++seed);
}

// Many tokens have blocks of several.
TEST_F(CudaQkNormRopeAppendTest, ManyTokens) {
  for (const DType act : kFloatTypes) check(act, {32, 8, 64}, 256, {1500, 1300, 1, 1021}, 7);
}

}  // namespace
}  // namespace lfm2
