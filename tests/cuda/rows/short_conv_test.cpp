// short_conv on the GPU, compared with transformers' results and its specification.
#include <gtest/gtest.h>

#include "cuda/gpu.h"
#include "support/row_cases.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaShortConvTest : ::testing::Test {
  GpuUnderTest gpu_ops;
};

TEST_F(CudaShortConvTest, AgreesWithTransformers) { check_short_conv_of_transformers(gpu_ops); }

TEST_F(CudaShortConvTest, EveryTypeAndLength) { check_short_conv(gpu_ops); }

TEST_F(CudaShortConvTest, ASamplesBitsAreItsOwn) {
  const std::vector<int32_t> lengths{31, 1, 32, 2, 5, 64, 3};
  const PackedBatch packed(lengths);
  for (const DType act : kFloatTypes) {
    HostTensor bcz(act, {packed.tokens(), 3 * 2048}), weight(act, {2048, 1, 3});
    bcz.fill_random(1);
    weight.fill_random(2);
    const HostTensor all = short_conv(gpu_ops, bcz, weight, no_tensor(), packed);
    int64_t first = 0;
    for (const int32_t length : lengths) {
      HostTensor one(act, {length, 3 * 2048});
      std::memcpy(one->data, bcz->rows(first, length).data, one->bytes());
      const PackedBatch alone({length});
      EXPECT_TRUE(same_bits(short_conv(gpu_ops, one, weight, no_tensor(), alone), all->rows(first, length)))
          << name(act) << ", " << length;
      first += length;
    }
  }
}

}  // namespace
}  // namespace lfm2
