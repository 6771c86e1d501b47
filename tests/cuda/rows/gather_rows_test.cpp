// gather_rows on the GPU gives the bits of the CPU's operator.
#include <gtest/gtest.h>

#include "cuda/gpu.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaGatherRowsTest : ::testing::Test {
  CpuReference cpu;
};

TEST_F(CudaGatherRowsTest, CopiesTheRows) {
  for (const int64_t n : {1, 21, 64, 2048})
    for (const DType dtype : kFloatTypes) {
      HostTensor rows(DType::kI32, {3}), x(dtype, {5, n}), out(dtype, {3, n}), expected(dtype, {3, n});
      rows.fill({4, 0, 4});
      x.fill_random(1);
      const DeviceTensor device_rows(rows), device_x(x), device_out(out);
      on_gpu([&](Ops& ops) { ops.gather_rows(device_x, device_rows, device_out); });
      device_out.fetch(out);
      cpu.ops.gather_rows(x, rows, expected);
      EXPECT_TRUE(same_bits(out, expected)) << name(dtype) << " " << n;
    }
}

}  // namespace
}  // namespace lfm2
