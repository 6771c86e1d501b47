// insert_drawn on the GPU gives what the CPU's operator gives.
#include <gtest/gtest.h>

#include "cuda/gpu.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaInsertDrawnTest : ::testing::Test {
  CpuReference cpu;
};

TEST_F(CudaInsertDrawnTest, ReplacesWhatIsNegative) {
  for (const int64_t tokens : {1, 3, 256, 1000}) {
    HostTensor ids(DType::kI32, {tokens}), drawn(DType::kI32, {tokens});
    for (int64_t i = 0; i < tokens; ++i) {
      ids.set(static_cast<size_t>(i), static_cast<double>(i % 3 == 0 ? i : i - tokens));
      drawn.set(static_cast<size_t>(i), static_cast<double>(100000 + i));
    }
    const DeviceTensor device_ids(ids), device_drawn(drawn);
    on_gpu([&](Ops& ops) { ops.insert_drawn(device_ids, device_drawn); });
    cpu.ops.insert_drawn(ids, drawn);
    HostTensor found(DType::kI32, {tokens});
    device_ids.fetch(found);
    EXPECT_TRUE(same_bits(found, ids)) << tokens;
  }
}

}  // namespace
}  // namespace lfm2
