// combine_experts on the GPU, compared with its specification.
#include <gtest/gtest.h>

#include "cuda/gpu.h"
#include "support/experts_cases.h"

namespace lfm2::test {
namespace {

TEST(CudaCombineExpertsTest, AddsTheWeightedRowsToTheResidual) {
  GpuUnderTest gpu_ops;
  check_combine_experts(gpu_ops);
}

}  // namespace
}  // namespace lfm2::test
