// attention on the GPU, compared with transformers' results and its specification.
#include <gtest/gtest.h>

#include <cmath>

#include "cuda/sequences.h"
#include "support/attention_cases.h"
#include "support/block_attention_cases.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaAttentionTest : ::testing::Test {
  GpuUnderTest gpu_ops;
};

HostTensor attend(const HostTensor& qkv, AttentionShape shape, const Batch& batch) {
  HostTensor out(qkv->dtype, {qkv->dim(0), shape.heads * shape.head_dim});
  const DeviceTensor device(qkv), device_out(out);
  on_gpu([&](Ops& ops) { ops.attention(device, shape, batch, device_out); });
  device_out.fetch(out);
  return out;
}

TEST_F(CudaAttentionTest, AgreesWithTransformers) { check_attention_of_transformers({&gpu_ops}); }

TEST_F(CudaAttentionTest, EveryTypeShapeAndLength) { check_attention({&gpu_ops}); }

TEST_F(CudaAttentionTest, Windows) { check_attention({&gpu_ops}, window_cases()); }

TEST_F(CudaAttentionTest, RowsOfDraftersReadToTheEndOfTheirBlock) { check_block_attention({&gpu_ops}, 1500); }

// Every 97th token and the last ones, of which each has a different share of a tile of keys.
TEST_F(CudaAttentionTest, LongSamplesAgainstTheirSpecification) {
  struct Case {
    AttentionShape shape;
    std::vector<int64_t> lengths;
  };
  for (const auto& [shape, lengths] : std::vector<Case>{{{4, 1, 64}, {5000, 700}},
                                                        {{4, 1, 64}, {65536}},
                                                        {{4, 1, 128}, {2500, 700}},
                                                        {{4, 1, 64, false, 256, true}, {5000, 700}},
                                                        {{4, 1, 128, false, 1500, true}, {5000, 700}}})
    for (const DType act : kFloatTypes) {
      const PackedSamples packed(lengths);
      const int64_t tokens = packed.tokens();
      HostTensor qkv(act, {tokens, shape.qkv_columns()});
      qkv.fill_random(1, 1.5f);
      const HostTensor out = attend(qkv, shape, packed.device);
      const std::vector<double> elements = reference::elements(qkv);
      std::vector<int64_t> chosen = {0, 63, 64, tokens - 65, tokens - 64, tokens - 2, tokens - 1};
      for (int64_t token = 97; tokens < 10000 && token < tokens; token += 97) chosen.push_back(token);
      if (tokens > 30001) chosen.push_back(30001);
      for (size_t sample = 1; sample < lengths.size(); ++sample)  // both sides of each border
        for (const int64_t side : {-1, 0}) chosen.push_back(static_cast<int64_t>(packed.starts[sample]) + side);
      for (const int64_t token : chosen) {
        SCOPED_TRACE(
            fmt::format("{}, {}, window {}, token {} of {}", name(act), shape.head_dim, shape.window, token, tokens));
        const int64_t position = (*packed.host_positions)->as<int32_t>()[token];
        const int64_t keys = shape.window > 0 ? std::min(position + 1, shape.window) : position + 1;
        const reference::AttentionRow row = reference::attention(elements, shape, token - position, token);
        HostTensor part(act, {1, shape.heads * shape.head_dim});
        std::memcpy(part->data, out->rows(token, 1).data, part->bytes());
        expect_close(part, row.out.values, attention_tolerance(gpu_ops, row, shape.head_dim, keys, act));
      }
    }
}

TEST_F(CudaAttentionTest, ASampleHasTheSameBitsAloneAndInABatch) {
  const PackedSamples packed({3, 400, 5}), alone({400}), shorter({77});
  for (const AttentionShape shape : {AttentionShape{8, 2, 24},
                                     {32, 8, 64},
                                     {4, 4, 128},
                                     {16, 4, 128},
                                     {8, 2, 24, false, 50, true},
                                     {32, 8, 64, false, 100, true},
                                     {16, 4, 128, false, 100, true}})
    for (const DType act : kFloatTypes) {
      SCOPED_TRACE(fmt::format("{} {}, window {}", name(act), shape.head_dim, shape.window));
      HostTensor qkv(act, {408, shape.qkv_columns()}), part(act, {400, shape.qkv_columns()});
      HostTensor prefix(act, {77, shape.qkv_columns()});
      qkv.fill_random(1);
      std::memcpy(part->data, qkv->rows(3, 400).data, part->bytes());
      std::memcpy(prefix->data, qkv->rows(3, 77).data, prefix->bytes());
      const HostTensor whole = attend(qkv, shape, packed.device);
      EXPECT_TRUE(same_bits(attend(part, shape, alone.device), whole->rows(3, 400)));
      EXPECT_TRUE(same_bits(attend(prefix, shape, shorter.device), whole->rows(3, 77)));
    }
}

TEST_F(CudaAttentionTest, WantedTokensHaveTheirBitsAndOthersAreLeftOut) {
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{32, 3, 32, 1, 20}, {3, 400, 5, 1, 96, 97, 2000}})
    for (const AttentionShape shape : {AttentionShape{8, 2, 24}, {32, 8, 64}, {4, 4, 128}, {16, 4, 128, false, 30}})
      for (const DType act : kFloatTypes)
        for (const int64_t wanted : {1, 5, 50}) {
          SCOPED_TRACE(fmt::format("{} {}, {} wanted", name(act), shape.head_dim, wanted));
          PackedSamples packed(lengths);
          HostTensor qkv(act, {packed.tokens(), shape.qkv_columns()});
          qkv.fill_random(1);
          const HostTensor expected = attend(qkv, shape, packed.device);
          packed.device.output_tokens = wanted;
          HostTensor out = nans(act, {packed.tokens(), shape.heads * shape.head_dim});
          const DeviceTensor device(qkv), device_out(out);
          on_gpu([&](Ops& ops) { ops.attention(device, shape, packed.device, device_out); });
          device_out.fetch(out);
          int64_t end = 0;
          for (const int64_t length : lengths) {
            end += length;
            const int64_t count = std::min(length, wanted);
            EXPECT_TRUE(same_bits(out->rows(end - count, count), expected->rows(end - count, count)));
            // A tile has 128 positions or fewer.
            if (length >= wanted + 128) {
              EXPECT_TRUE(std::isnan(out.get(at((end - length) * out->dim(1)))));
            }
          }
        }
}

TEST_F(CudaAttentionTest, NoTokens) {
  const PackedSamples none({});
  for (const DType act : kFloatTypes) {
    const HostTensor qkv(act, {0, 64}), out(act, {0, 32});
    const DeviceTensor device(qkv), device_out(out);
    on_gpu([&](Ops& ops) { ops.attention(device, {4, 2, 8}, none.device, device_out); });
    device_out.fetch(out);
  }
}

}  // namespace
}  // namespace lfm2
