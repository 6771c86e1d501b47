// The fp8 checkpoints of the golden cases on the GPU.
#include "support/fp8_golden.h"

#include <gtest/gtest.h>

#include "cuda/gpu.h"

namespace lfm2::test {
namespace {

class CudaFp8GoldenTest : public testing::TestWithParam<std::string> {};

TEST_P(CudaFp8GoldenTest, LogitsAreThoseOfTheSameRounding) { check_fp8_golden(gpu(), GetParam()); }
INSTANTIATE_TEST_SUITE_P(Cases, CudaFp8GoldenTest, testing::ValuesIn(kFp8Cases));

}  // namespace
}  // namespace lfm2::test
