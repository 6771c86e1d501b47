// The fp8 checkpoints of the golden cases on the CPU.
#include "support/fp8_golden.h"

#include <gtest/gtest.h>

#include "kernels/cpu/cpu_backend.h"

namespace lfm2::test {
namespace {

class Fp8GoldenTest : public testing::TestWithParam<std::string> {};

TEST_P(Fp8GoldenTest, LogitsAreThoseOfTheSameRounding) {
  CpuBackend backend(2);
  check_fp8_golden(backend, GetParam());
}
INSTANTIATE_TEST_SUITE_P(Cases, Fp8GoldenTest, testing::ValuesIn(kFp8Cases));

}  // namespace
}  // namespace lfm2::test
