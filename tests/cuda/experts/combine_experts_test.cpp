// combine_experts on the GPU, compared with the CPU's operator.
#include <gtest/gtest.h>

#include "cuda/experts/weighted_rows.h"
#include "cuda/gpu.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaCombineExpertsTest : ::testing::Test {
  CpuReference cpu;
};

TEST_F(CudaCombineExpertsTest, AddsTheWeightedRowsToTheResidual) {
  const int64_t tokens = 9, top_k = 3;
  for (const int64_t hidden : {1, 45, 64, 2048})
    for (const DType act : kFloatTypes) {
      SCOPED_TRACE(fmt::format("{} {}", name(act), hidden));
      HostTensor y(act, {tokens * top_k, hidden}), residual(act, {tokens, hidden}), out(act, {tokens, hidden});
      HostTensor weights(DType::kF32, {tokens, top_k}), rows(DType::kI32, {tokens, top_k});
      y.fill_random(1);
      residual.fill_random(2, 4.0f);
      weights.fill_random(3);
      for (size_t i = 0; i < 27; ++i) rows.set(i, static_cast<double>(i * 10 % 27));
      const DeviceTensor device_y(y), device_residual(residual), device_weights(weights), device_rows(rows);
      on_gpu([&](Ops& ops) {
        ops.combine_experts(device_y, weighted_rows(device_weights, device_rows), device_residual);
      });
      device_residual.fetch(out);
      HostTensor most(DType::kF32, {tokens, hidden}), wide(DType::kF32, {tokens * top_k, hidden});
      most.fill(magnitudes(residual));
      wide.fill(magnitudes(y));
      cpu.ops.combine_experts(y, weighted_rows(weights, rows), residual);
      weights.fill(magnitudes(weights));
      cpu.ops.combine_experts(wide, weighted_rows(weights, rows), most);
      expect_close_to_cpu(out, residual, most.values(), 10);
    }
}

}  // namespace
}  // namespace lfm2
