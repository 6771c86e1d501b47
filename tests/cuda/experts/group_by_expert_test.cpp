// group_by_expert on the GPU gives the stable sort of its specification.
#include <gtest/gtest.h>

#include "cuda/gpu.h"
#include "support/experts_cases.h"

namespace lfm2::test {
namespace {

TEST(CudaGroupByExpertTest, IsAStableSort) {
  GpuUnderTest gpu_ops;
  check_group_by_expert(gpu_ops);
}

}  // namespace
}  // namespace lfm2::test
