// append_keys_values on the GPU writes each token's keys and values, bit by bit, where its sequence's pages say, and
// nowhere else.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cuda/sequences.h"
#include "support/cache_tensors.h"
#include "support/row_cases.h"

namespace lfm2 {
namespace {

using namespace test;

TEST(CudaAppendKeysValuesTest, PutsEveryTokenIntoItsPage) {
  uint32_t seed = 0;
  for (const DType act : kFloatTypes)
    for (const AttentionShape shape : {AttentionShape{4, 2, 64}, {6, 1, 24}, {3, 3, 82}, {5, 1, 2}})
      for (const int64_t page : {1, 16, 50}) {
        SCOPED_TRACE(fmt::format("{} heads {} {} {}, pages of {}", name(act), shape.heads, shape.kv_heads,
                                 shape.head_dim, page));
        Sequences sequences({1, 70, 33, 2}, page, ++seed);
        HostTensor qkv(act, {sequences.packed.tokens(), shape.qkv_columns()});
        qkv.fill_random(seed);
        const HostTensor keys = nans(act, {sequences.pages(), page, shape.kv_heads, shape.head_dim}),
                         values = nans(act, {sequences.pages(), page, shape.kv_heads, shape.head_dim});
        const DeviceTensor device_keys(keys), device_values(values);
        const size_t bytes = at(shape.kv_heads * shape.head_dim) * size_bytes(act);
        while (!sequences.finished()) {
          const auto parts = sequences.random_parts(40);
          if (parts.empty()) continue;
          sequences.next(parts);
          const DeviceTensor rows(sequences.take(qkv));
          on_gpu([&](Ops& ops) { ops.append_keys_values(rows, shape, sequences.batch, {device_keys, device_values}); });
          gpu().compute().drain();
          for (size_t i = 0; i < sequences.tokens.size(); ++i) {
            const std::byte* row = qkv->rows(sequences.tokens[i], 1).data;
            const size_t key = at(shape.heads * shape.head_dim) * size_bytes(act),
                         to = at(sequences.cache_row(i)) * bytes;
            std::memcpy(keys->data + to, row + key, bytes);
            std::memcpy(values->data + to, row + key + bytes, bytes);
          }
        }
        const HostTensor written_keys = nans(act, {sequences.pages(), page, shape.kv_heads, shape.head_dim}),
                         written_values = nans(act, {sequences.pages(), page, shape.kv_heads, shape.head_dim});
        device_keys.fetch(written_keys);
        device_values.fetch(written_values);
        EXPECT_TRUE(same_bits(written_keys, keys));
        EXPECT_TRUE(same_bits(written_values, values));
      }
}

// In fp8, the cache holds the rounded keys and values of every token: elements times scales.
TEST(CudaAppendKeysValuesTest, RoundsToFp8) {
  uint32_t seed = 0;
  for (const DType act : kFloatTypes)
    for (const AttentionShape shape :
         {AttentionShape{4, 2, 64, true}, {6, 1, 24, true}, {3, 3, 82, true}, {5, 1, 2, true}})
      for (const int64_t page : {1, 16, 50}) {
        SCOPED_TRACE(fmt::format("{} heads {} {} {}, pages of {}", name(act), shape.heads, shape.kv_heads,
                                 shape.head_dim, page));
        Sequences sequences({1, 70, 33, 2}, page, ++seed);
        HostTensor qkv(act, {sequences.packed.tokens(), shape.qkv_columns()});
        qkv.fill_random(seed);
        fill_hard_values(qkv, shape);
        const std::vector<double> expected = reference::fp8_keys_values(qkv, shape);
        const CacheTensors<DeviceTensor> device(shape, act, sequences.pages(), page);
        const CacheTensors<HostTensor> host(shape, act, sequences.pages(), page);
        while (!sequences.finished()) {
          const auto parts = sequences.random_parts(40);
          if (parts.empty()) continue;
          sequences.next(parts);
          const DeviceTensor rows(sequences.take(qkv));
          on_gpu([&](Ops& ops) { ops.append_keys_values(rows, shape, sequences.batch, device.cache()); });
          device.keys.fetch(host.keys);
          device.values.fetch(host.values);
          device.key_scales.fetch(host.key_scales);
          device.value_scales.fetch(host.value_scales);
          for (size_t i = 0; i < sequences.tokens.size(); ++i)
            for (int64_t head = 0; head < 2 * shape.kv_heads; ++head) {
              const bool is_key = head < shape.kv_heads;
              const size_t row = at(sequences.cache_row(i) * shape.kv_heads + head % shape.kv_heads);
              const int exponent = (is_key ? host.key_scales : host.value_scales)->as<uint8_t>()[row];
              for (size_t e = 0; e < at(shape.head_dim); ++e) {
                const double
                    rounded =
                        expected[at(sequences.tokens[i] * shape.qkv_columns() + (shape.heads + head) * shape.head_dim) +
                                 e],
                    found = (is_key ? host.keys : host.values).get(row * at(shape.head_dim) + e) *
                            std::ldexp(1.0, exponent - 127);
                ASSERT_TRUE(std::isnan(rounded) ? std::isnan(found) : rounded == found) << rounded << ", " << found;
              }
            }
        }
      }
}

}  // namespace
}  // namespace lfm2
