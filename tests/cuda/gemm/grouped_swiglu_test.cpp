// grouped_swiglu on the GPU, compared with its specification.
#include <gtest/gtest.h>

#include "cuda/gpu.h"
#include "support/product_cases.h"

namespace lfm2::test {
namespace {

TEST(CudaGroupedSwigluTest, EveryTypeAndSplit) {
  GpuUnderTest gpu_ops;
  check_grouped_swiglu({&gpu_ops});
}

}  // namespace
}  // namespace lfm2::test
