// matmul_swiglu on the GPU, compared with its specification.
#include <gtest/gtest.h>

#include "cuda/gpu.h"
#include "support/product_cases.h"

namespace lfm2 {
namespace {

using namespace test;

TEST(CudaMatmulSwigluTest, EveryTypeAndOddSizes) {
  GpuUnderTest gpu_ops;
  check_matmul_swiglu({&gpu_ops});
}

TEST(CudaMatmulSwigluTest, RefusesPartsOfABlock) {
  const HostTensor host_a(DType::kF32, {3, 8}), host_w(DType::kF32, {24, 8}), host_out(DType::kF32, {3, 12});
  const DeviceTensor a(host_a), w(host_w), out(host_out);
  EXPECT_THROW(on_gpu([&](Ops& ops) { ops.matmul_swiglu(a, w, out); }), Error);
}

}  // namespace
}  // namespace lfm2
