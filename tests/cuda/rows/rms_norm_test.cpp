// rms_norm on the GPU, compared with transformers' results and its specification.
#include <gtest/gtest.h>

#include "cuda/rows/rms_norm_support.h"
#include "support/row_cases.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaRmsNormTest : ::testing::Test {
  GpuUnderTest gpu_ops;
};

TEST_F(CudaRmsNormTest, AgreesWithTransformers) { check_rms_norm_of_transformers(gpu_ops); }

TEST_F(CudaRmsNormTest, EveryTypeInPlaceAndOddWidths) { check_rms_norm(gpu_ops); }

TEST_F(CudaRmsNormTest, ARowsBitsAreItsOwn) {
  HostTensor x(DType::kBf16, {300, 2048}), scale(DType::kBf16, {2048});
  x.fill_random(1);
  scale.fill_random(2);
  const HostTensor all = rms_norm(x, scale);
  for (const int64_t row : {0, 1, 150, 299}) {
    HostTensor one(DType::kBf16, {1, 2048});
    std::memcpy(one->data, x->rows(row, 1).data, one->bytes());
    EXPECT_TRUE(same_bits(rms_norm(one, scale), all->rows(row, 1)));
  }
}

TEST_F(CudaRmsNormTest, InPlaceOrNot) {
  for (const int64_t n : {64, 2048, 7168}) {
    HostTensor x(DType::kBf16, {9, n}), scale(DType::kBf16, {n}), out(DType::kBf16, {9, n});
    x.fill_random(1);
    scale.fill_random(2);
    const DeviceTensor in(x), weight(scale), apart(out);
    on_gpu([&](Ops& ops) { ops.rms_norm(in, weight, 1e-5f, apart); });
    apart.fetch(out);
    EXPECT_TRUE(same_bits(out, rms_norm(x, scale))) << n;
  }
}

TEST_F(CudaRmsNormTest, RefusesOtherShapesAndIntegers) {
  const HostTensor host_x(DType::kF32, {3, 5}), host_weight(DType::kF32, {5}), host_narrower(DType::kF32, {3, 4}),
      host_integers(DType::kI32, {3, 5}), host_integer_weight(DType::kI32, {5});
  const DeviceTensor x(host_x), weight(host_weight), narrower(host_narrower), integers(host_integers),
      integer_weight(host_integer_weight);
  EXPECT_THROW(on_gpu([&](Ops& ops) { ops.rms_norm(x, weight, 1e-5f, narrower); }), Error);
  EXPECT_THROW(on_gpu([&](Ops& ops) { ops.rms_norm(integers, weight, 1e-5f, integers); }), Error);
  EXPECT_THROW(on_gpu([&](Ops& ops) { ops.rms_norm(x, integer_weight, 1e-5f, x); }), Error);
}

}  // namespace
}  // namespace lfm2
