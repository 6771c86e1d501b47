// gate_heads on the GPU, compared with its specification.
#include <gtest/gtest.h>

#include "cuda/gpu.h"
#include "support/row_cases.h"

namespace lfm2 {
namespace {

using namespace test;

TEST(CudaGateHeadsTest, EveryTypeAndShape) {
  GpuUnderTest gpu_ops;
  check_gate_heads(gpu_ops);
}

}  // namespace
}  // namespace lfm2
