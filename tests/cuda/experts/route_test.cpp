// route on the GPU, compared with its specification.
#include <gtest/gtest.h>

#include "cuda/gpu.h"
#include "support/experts_cases.h"

namespace lfm2::test {
namespace {

struct CudaRouteTest : ::testing::Test {
  GpuUnderTest gpu_ops;
};

TEST_F(CudaRouteTest, AgreesWithASortByScore) { check_route(gpu_ops); }

TEST_F(CudaRouteTest, TiesGoToTheLowerIdAndTheBiasOnlyChooses) { check_ties_of_route(gpu_ops); }

TEST_F(CudaRouteTest, NanAndInfinityGiveDistinctValidIds) { check_route_of_nans(gpu_ops); }

TEST_F(CudaRouteTest, NoTokens) {
  route(gpu_ops, HostTensor(DType::kF32, {0, 4}), no_tensor(), {2, true, 1.0f}, TestRouting(0, 2, 4));
}

}  // namespace
}  // namespace lfm2::test
