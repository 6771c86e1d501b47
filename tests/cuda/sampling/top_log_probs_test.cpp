// top_log_probs on the GPU, compared with its specification.
#include <gtest/gtest.h>

#include "cuda/gpu.h"
#include "support/sampling_cases.h"

namespace lfm2::test {
namespace {

struct CudaTopLogProbsTest : ::testing::Test {
  GpuUnderTest gpu_ops;
};

TEST_F(CudaTopLogProbsTest, AnyKAndVocabulary) { check_top_log_probs(gpu_ops); }

TEST_F(CudaTopLogProbsTest, NanAndInfinity) { check_log_probs_of_nans(gpu_ops); }

}  // namespace
}  // namespace lfm2::test
