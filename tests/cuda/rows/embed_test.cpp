// embed on the GPU gives the bits of its specification.
#include <gtest/gtest.h>

#include "cuda/gpu.h"
#include "support/row_cases.h"

namespace lfm2::test {
namespace {

TEST(CudaEmbedTest, CopiesOrConvertsTheRows) {
  GpuUnderTest gpu_ops;
  check_embed(gpu_ops);
}

}  // namespace
}  // namespace lfm2::test
