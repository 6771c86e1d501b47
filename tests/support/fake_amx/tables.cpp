// amx_tests: what available_simd() finds where AMX is fake_amx.h.
#include <gtest/gtest.h>

#include "kernels/cpu/simd/simd.h"

namespace lfm2 {

namespace {

// fake_amx.h is compiled for such processors, because its multiply-adds would take ten times as long on others.
bool supported() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

}  // namespace

const Simd kSimdAmx{"amx",
                    &kMatmulAmx,
                    kSimdAvx2.dots,
                    kSimdAvx2.mix,
                    kSimdAvx2.exponentials,
                    kSimdAvx2.silu_multiply,
                    kSimdAvx2.add,
                    kSimdAvx2.count_magnitudes,
                    kSimdAvx2.widen};

std::vector<const Simd*> available_simd() {
  if (supported()) return {&kSimdAmx, &kSimdAvx2};  // unit_tests has the portable one
  return {&kSimdPortable};
}

TEST(FakeAmxTest, IsWhatTheOthersTest) {
  if (!supported()) GTEST_SKIP() << "this processor lacks AVX2, FMA or F16C: the others test the portable kernels";
  EXPECT_STREQ(available_simd().front()->name, "amx");
}

}  // namespace lfm2
