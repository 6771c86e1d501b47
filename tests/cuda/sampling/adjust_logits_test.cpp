// adjust_logits on the GPU gives the bits of its specification, and sample draws from them.
#include <gtest/gtest.h>

#include "cuda/gpu.h"
#include "support/sampling_cases.h"

namespace lfm2::test {
namespace {

TEST(CudaAdjustLogitsTest, AgreesWithItsSpecification) {
  GpuUnderTest gpu_ops;
  for (const int64_t vocab : {31, 8192, 65536, 70001}) check_adjust_logits(gpu_ops, vocab);
}

}  // namespace
}  // namespace lfm2::test
