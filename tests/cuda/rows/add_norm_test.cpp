// add_norm on the GPU, compared with its specification, and its fp8 rows with those of rms_norm.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cuda/gpu.h"
#include "support/fp8_cases.h"
#include "support/row_cases.h"

namespace lfm2 {
namespace {

using namespace test;

TEST(CudaAddNormTest, EveryTypeAndOddWidths) {
  GpuUnderTest gpu_ops;
  check_add_norm(gpu_ops);
}

TEST(CudaAddNormTest, RoundsRowsAsRmsNormDoes) {
  for (const int64_t n : {128, 1000, 2048, 2560})
    for (const int64_t group : {0, 128}) {
      SCOPED_TRACE(fmt::format("{}, groups of {}", n, group));
      HostTensor x(DType::kBf16, {9, n}), weight(DType::kBf16, {n}), residual(DType::kBf16, {9, n});
      x.fill_random(1);
      weight.fill_random(2);
      residual.fill_random(3, 3.0f);
      Fp8Matrix at_once({9, n}, {1, group}, 1), after({9, n}, {1, group}, 2);
      const DeviceTensor in(x), scale(weight), sum(residual), once(at_once.elements), once_scales(at_once.scales),
          twice(after.elements), twice_scales(after.scales);
      on_gpu([&](Ops& ops) {
        ops.add_norm(in, scale, 1e-5f, sum, scale, 1e-3f, at_once.with(once, once_scales));
        ops.rms_norm(sum, scale, 1e-3f, after.with(twice, twice_scales));
      });
      once.fetch(at_once.elements);
      once_scales.fetch(at_once.scales);
      twice.fetch(after.elements);
      twice_scales.fetch(after.scales);
      EXPECT_TRUE(same_bits(at_once.elements, after.elements));
      EXPECT_TRUE(same_bits(at_once.scales, after.scales));
    }
}

}  // namespace
}  // namespace lfm2
