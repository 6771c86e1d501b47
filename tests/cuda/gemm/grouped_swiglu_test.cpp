// grouped_swiglu on the GPU, compared with SwiGLU of the CPU's sums.
#include <gtest/gtest.h>

#include <vector>

#include "cuda/gemm/swiglu_support.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaGroupedSwigluTest : ::testing::Test {
  CpuReference cpu;

  void check(const std::vector<double>& split, int64_t ffn, int64_t k, DType act, DType weight) {
    const auto m = static_cast<int64_t>(split.back()), experts = static_cast<int64_t>(split.size()) - 1;
    SCOPED_TRACE(fmt::format("{} rows, {} experts, ffn {} k {} {} {}", m, experts, ffn, k, name(act), name(weight)));
    HostTensor a(act, {m, k}), w(weight, {experts, 2 * ffn, k}), out(act, {m, ffn}), wide(DType::kF32, {m, k});
    HostTensor offsets(DType::kI32, {experts + 1}), sums(DType::kF32, {m, 2 * ffn}), terms(DType::kF32, {m, 2 * ffn});
    a.fill_random(1);
    w.fill_random(2);
    offsets.fill(split);
    const DeviceTensor device_a(a), device_w(w), device_offsets(offsets), device_out(out);
    on_gpu([&](Ops& ops) { ops.grouped_swiglu(device_a, device_w, device_offsets, device_out); });
    device_out.fetch(out);
    wide.fill(a.values());
    cpu.ops.grouped_matmul(wide, w, offsets, sums);
    wide.fill(magnitudes(a));
    w.fill(magnitudes(w));
    cpu.ops.grouped_matmul(wide, w, offsets, terms);
    expect_close_swiglu(out, sums, terms, k);
  }
};

TEST_F(CudaGroupedSwigluTest, EveryTypeAndSplit) {
  for (const auto& [act, weight] : kActAndWeight)
    for (const auto& split : {std::vector<double>{0, 3, 3, 10, 150, 151}, {0, 0, 0, 151, 151, 151}, {0, 1, 2, 3, 4}})
      for (const int64_t k : {9, 64, 1100}) check(split, 136, k, act, weight);
}

TEST_F(CudaGroupedSwigluTest, NoRows) { check({0, 0, 0, 0}, 16, 64, DType::kBf16, DType::kBf16); }

}  // namespace
}  // namespace lfm2
