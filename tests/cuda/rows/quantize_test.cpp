// quantize on the GPU, compared with its specification and with the CPU.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "cuda/gpu.h"
#include "support/fp8_rows_cases.h"
#include "support/index_cast.h"

namespace lfm2::test {
namespace {

void expect_bits_of_the_cpu(const HostTensor& x, int64_t group) {
  GpuUnderTest gpu_ops;
  CpuUnderTest cpu(*available_simd().front());
  const auto quantized = [&](OpsUnderTest& under) {
    Fp8Matrix out({x->dim(0), x->dim(1)}, {1, group}, 8);
    under.run([&](Ops& ops, const Tensor& in, const Tensor& elements,
                  const Tensor& scales) { ops.quantize(in, out.with(elements, scales)); },
              x, out.elements, out.scales);
    return out;
  };
  const Fp8Matrix there = quantized(gpu_ops), here = quantized(cpu);
  EXPECT_EQ(std::memcmp(there.elements->data, here.elements->data, here.elements->bytes()), 0) << x->dim(1);
  EXPECT_EQ(std::memcmp(there.scales->data, here.scales->data, here.scales->bytes()), 0) << x->dim(1);
}

TEST(CudaQuantizeTest, RoundsToTheNearestOfItsScale) {
  GpuUnderTest gpu_ops;
  check_quantize({&gpu_ops});
}

TEST(CudaQuantizeTest, OperatorsRoundTheirResultsAlike) {
  GpuUnderTest gpu_ops;
  check_rounded_results({&gpu_ops}, true);
}

TEST(CudaQuantizeTest, HasTheBitsOfTheCpu) {
  for (const int64_t group : {0, 128})
    for (const int64_t k : {96, 301, 1792, 2048}) {
      HostTensor x(DType::kBf16, {37, k});
      x.fill_random(5, 2.0f);
      x.set(0, -0.0);
      x.set(at(k), 1e30);
      for (int64_t c = 0; c < k; ++c) x.set(at(2 * k + c), x.get(at(2 * k + c)) * 1e-33);
      expect_bits_of_the_cpu(x, group);
    }
}

// Every significand of bf16 as a row's largest element, and every smaller element down to those that become 0.
TEST(CudaQuantizeTest, DividesAsTheCpuDoes) {
  constexpr int64_t kSignificands = 128, kOctaves = 20;
  HostTensor x(DType::kBf16, {kSignificands, kSignificands * kOctaves});
  for (int64_t row = 0; row < kSignificands; ++row)
    for (int64_t c = 0; c < kSignificands * kOctaves; ++c) {
      const int64_t octave = c / kSignificands, significand = c % kSignificands;
      const bool is_smaller = octave > 0 || significand <= row;
      x.set(at(row * kSignificands * kOctaves + c),
            is_smaller ? std::ldexp(static_cast<double>(kSignificands + significand), static_cast<int>(-octave)) : 0.0);
    }
  expect_bits_of_the_cpu(x, 0);
}

}  // namespace
}  // namespace lfm2::test
