// embed on the GPU gives the bits of the CPU's operator.
#include <gtest/gtest.h>

#include "cuda/gpu.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaEmbedTest : ::testing::Test {
  CpuReference cpu;
};

TEST_F(CudaEmbedTest, CopiesOrConvertsTheRows) {
  for (const int64_t hidden : {1, 33, 64, 2048})
    for (const DType from : kFloatTypes)
      for (const DType to : kFloatTypes) {
        HostTensor ids(DType::kI32, {4}), table(from, {5, hidden}), expected(to, {4, hidden}), out(to, {4, hidden});
        ids.fill({2, 0, 2, 4});
        table.fill_random(1);
        const DeviceTensor device_ids(ids), device_table(table), device_out(out);
        on_gpu([&](Ops& ops) { ops.embed(device_ids, device_table, device_out); });
        device_out.fetch(out);
        cpu.ops.embed(ids, table, expected);
        EXPECT_TRUE(same_bits(out, expected)) << name(from) << " to " << name(to) << ", " << hidden;
      }
}

}  // namespace
}  // namespace lfm2
