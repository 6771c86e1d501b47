// put_columns on the GPU, compared with the CPU's.
#include <gtest/gtest.h>

#include "cuda/gpu.h"
#include "support/row_cases.h"

namespace lfm2::test {
namespace {

TEST(CudaPutColumnsTest, ColumnsAreInTheirPlaceAndOthersStay) {
  GpuUnderTest gpu_ops;
  check_put_columns({&gpu_ops});
}

}  // namespace
}  // namespace lfm2::test
