// Products of fp8 operands on the GPU, compared with their specification.
#include <gtest/gtest.h>

#include "cuda/gpu.h"
#include "support/fp8_cases.h"

namespace lfm2::test {
namespace {

TEST(CudaFp8ProductTest, EverySchemeTypeAndSplit) {
  GpuUnderTest gpu_ops;
  check_fp8_products({&gpu_ops});
}

}  // namespace
}  // namespace lfm2::test
