// gather_rows on the GPU gives the bits of its specification.
#include <gtest/gtest.h>

#include "cuda/gpu.h"
#include "support/row_cases.h"

namespace lfm2::test {
namespace {

TEST(CudaGatherRowsTest, CopiesTheRows) {
  GpuUnderTest gpu_ops;
  check_gather_rows(gpu_ops);
}

}  // namespace
}  // namespace lfm2::test
