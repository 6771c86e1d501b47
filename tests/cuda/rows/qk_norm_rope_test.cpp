// qk_norm_rope on the GPU, compared with transformers' results and its specification.
#include <gtest/gtest.h>

#include "cuda/gpu.h"
#include "support/row_cases.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaQkNormRopeTest : ::testing::Test {
  GpuUnderTest gpu_ops;
};

TEST_F(CudaQkNormRopeTest, AgreesWithTransformers) { check_rope_of_transformers(gpu_ops); }

TEST_F(CudaQkNormRopeTest, EveryTypeAtFarPositions) { check_qk_norm_rope(gpu_ops, 128000); }

TEST_F(CudaQkNormRopeTest, SomePairsAndGates) { check_qk_norm_rope(gpu_ops, 128000, partial_rope_cases()); }

TEST_F(CudaQkNormRopeTest, RoundsKeysAndValuesToFp8) { check_fp8_keys_values(gpu_ops); }

// Few tokens have a kernel of their own.
TEST_F(CudaQkNormRopeTest, ATokensBitsAreItsOwn) {
  const AttentionShape shape{32, 8, 64};
  const int64_t many = 1100;
  for (const DType act : kFloatTypes) {
    HostTensor qkv(act, {many, shape.qkv_columns()}), weight(act, {shape.head_dim});
    qkv.fill_random(1);
    weight.fill_random(2);
    const auto turned = [&](int64_t tokens) {
      HostTensor part(act, {tokens, shape.qkv_columns()});
      std::memcpy(part->data, qkv->data, part->bytes());
      qk_norm_rope(gpu_ops, part, weight, weight, {1e6f}, shape, PackedBatch({static_cast<int32_t>(tokens)}));
      return part;
    };
    const HostTensor all = turned(many);
    for (const int64_t tokens : {1, 9, 1024})
      EXPECT_TRUE(same_bits(turned(tokens), all->rows(0, tokens))) << name(act) << ", " << tokens << " tokens";
  }
}

TEST_F(CudaQkNormRopeTest, NoTokens) {
  for (const DType act : kFloatTypes) {
    const HostTensor qkv(act, {0, 64}), weight(act, {8});
    qk_norm_rope(gpu_ops, qkv, weight, weight, {1e6f}, {4, 2, 8}, PackedBatch({}));
  }
}

}  // namespace
}  // namespace lfm2
