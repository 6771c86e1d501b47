// attention on the GPU, compared with transformers' results, its specification and, for long samples, the CPU's
// operator.
#include <gtest/gtest.h>

#include <cmath>

#include "cuda/sequences.h"
#include "support/attention_cases.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaAttentionTest : ::testing::Test {
  CpuReference cpu;
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

TEST_F(CudaAttentionTest, LongSamplesAgainstTheCpu) {
  const PackedSamples packed({5000, 700});
  const AttentionShape shape{4, 1, 64};
  for (const DType act : kFloatTypes) {
    SCOPED_TRACE(name(act));
    HostTensor qkv(act, {packed.tokens(), shape.qkv_columns()}), expected(act, {packed.tokens(), 256});
    qkv.fill_random(1, 1.5f);
    const HostTensor out = attend(qkv, shape, packed.device);
    cpu.ops.attention(qkv, shape, packed.host, expected);
    expect_close_to_cpu(out, expected, std::vector<double>(out.size(), 1.5), act == DType::kF32 ? 300 : 700);
  }
}

TEST_F(CudaAttentionTest, LongestSampleAgainstItsSpecification) {
  const int64_t tokens = 65536;
  const PackedSamples packed({tokens});
  const AttentionShape shape{4, 1, 64};
  for (const DType act : kFloatTypes) {
    SCOPED_TRACE(name(act));
    HostTensor qkv(act, {tokens, shape.qkv_columns()});
    qkv.fill_random(1, 1.5f);
    const HostTensor out = attend(qkv, shape, packed.device);
    const std::vector<double> elements = reference::elements(qkv);
    for (const int64_t token : {int64_t{0}, int64_t{63}, int64_t{64}, int64_t{30001}, tokens - 1}) {
      const reference::AttentionRow row = reference::attention(elements, shape, 0, token);
      HostTensor part(act, {1, 256});
      std::memcpy(part->data, out->rows(token, 1).data, part->bytes());
      SCOPED_TRACE(token);
      expect_close(part, row.out.values, attention_tolerance(gpu_ops, row, shape.head_dim, token + 1, act));
    }
  }
}

TEST_F(CudaAttentionTest, ASampleHasTheSameBitsAloneAndInABatch) {
  const PackedSamples packed({3, 400, 5}), alone({400}), shorter({77});
  for (const AttentionShape shape : {AttentionShape{8, 2, 24}, {32, 8, 64}, {4, 4, 128}})
    for (const DType act : kFloatTypes) {
      SCOPED_TRACE(fmt::format("{} {}", name(act), shape.head_dim));
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
    for (const AttentionShape shape : {AttentionShape{8, 2, 24}, {32, 8, 64}, {4, 4, 128}})
      for (const DType act : kFloatTypes)
        for (const int64_t wanted : {1, 5, 50}) {
          SCOPED_TRACE(fmt::format("{} {}, {} wanted", name(act), shape.head_dim, wanted));
          PackedSamples packed(lengths);
          HostTensor qkv(act, {packed.tokens(), shape.qkv_columns()});
          qkv.fill_random(1);
          const HostTensor expected = attend(qkv, shape, packed.device);
          packed.device.wanted = wanted;
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
