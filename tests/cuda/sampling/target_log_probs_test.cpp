// target_log_probs on the GPU, compared with its specification. (top_log_probs_test.cpp has the rows with NaN.)
#include <gtest/gtest.h>

#include "cuda/gpu.h"
#include "support/sampling_cases.h"

namespace lfm2::test {
namespace {

TEST(CudaTargetLogProbsTest, EveryTarget) {
  GpuUnderTest gpu_ops;
  check_target_log_probs(gpu_ops);
}

}  // namespace
}  // namespace lfm2::test
