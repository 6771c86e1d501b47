// quantize on the GPU, compared with its specification and with the CPU.
#include <gtest/gtest.h>

#include <cstring>

#include "cuda/gpu.h"
#include "support/fp8_rows_cases.h"
#include "support/index_cast.h"

namespace lfm2::test {
namespace {

TEST(CudaQuantizeTest, RoundsToTheNearestOfItsScale) {
  GpuUnderTest gpu_ops;
  check_quantize({&gpu_ops});
}

TEST(CudaQuantizeTest, OperatorsRoundTheirResultsAlike) {
  GpuUnderTest gpu_ops;
  check_rounded_results({&gpu_ops}, true);
}

TEST(CudaQuantizeTest, HasTheBitsOfTheCpu) {
  GpuUnderTest gpu_ops;
  CpuUnderTest cpu(*available_simd().front());
  for (const int64_t group : {0, 128})
    for (const int64_t k : {96, 301, 1792, 2048}) {
      HostTensor x(DType::kBf16, {37, k});
      x.fill_random(5, 2.0f);
      x.set(0, -0.0);
      x.set(at(k), 1e30);
      for (int64_t c = 0; c < k; ++c) x.set(at(2 * k + c), x.get(at(2 * k + c)) * 1e-33);
      const auto quantized = [&](OpsUnderTest& under) {
        Fp8Matrix out({37, k}, {1, group}, 8);
        under.run([&](Ops& ops, const Tensor& in, const Tensor& elements,
                      const Tensor& scales) { ops.quantize(in, out.with(elements, scales)); },
                  x, out.elements, out.scales);
        return out;
      };
      const Fp8Matrix there = quantized(gpu_ops), here = quantized(cpu);
      EXPECT_EQ(std::memcmp(there.elements->data, here.elements->data, here.elements->bytes()), 0) << k;
      EXPECT_EQ(std::memcmp(there.scales->data, here.scales->data, here.scales->bytes()), 0) << k;
    }
}

}  // namespace
}  // namespace lfm2::test
