// insert_drawn on the GPU gives what its specification gives.
#include <gtest/gtest.h>

#include "cuda/gpu.h"
#include "support/row_cases.h"

namespace lfm2::test {
namespace {

TEST(CudaInsertDrawnTest, ReplacesWhatIsNegative) {
  GpuUnderTest gpu_ops;
  check_insert_drawn(gpu_ops);
}

}  // namespace
}  // namespace lfm2::test
