// count_tokens on the GPU has the counts of its specification, exactly.
#include <gtest/gtest.h>

#include "cuda/gpu.h"
#include "support/sampling_cases.h"

namespace lfm2::test {
namespace {

TEST(CudaCountTokensTest, AgreesWithItsSpecificationOverManyBatches) {
  GpuUnderTest gpu_ops;
  check_count_tokens(gpu_ops);
}

}  // namespace
}  // namespace lfm2::test
