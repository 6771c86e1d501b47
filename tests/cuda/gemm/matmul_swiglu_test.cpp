// matmul_swiglu on the GPU, compared with SwiGLU of the CPU's sums.
#include <gtest/gtest.h>

#include "cuda/gemm/swiglu_support.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaMatmulSwigluTest : ::testing::Test {
  CpuReference cpu;

  void check(int64_t m, int64_t ffn, int64_t k, DType act, DType weight) {
    SCOPED_TRACE(fmt::format("m {} ffn {} k {} {} {}", m, ffn, k, name(act), name(weight)));
    HostTensor a(act, {m, k}), w(weight, {2 * ffn, k}), out(act, {m, ffn}), wide(DType::kF32, {m, k});
    HostTensor sums(DType::kF32, {m, 2 * ffn}), terms(DType::kF32, {m, 2 * ffn});
    a.fill_random(1);
    w.fill_random(2);
    const DeviceTensor device_a(a), device_w(w), device_out(out);
    on_gpu([&](Ops& ops) { ops.matmul_swiglu(device_a, device_w, device_out); });
    device_out.fetch(out);
    wide.fill(a.values());
    cpu.ops.matmul(wide, w, {}, sums, Write::kStore);
    wide.fill(magnitudes(a));
    w.fill(magnitudes(w));
    cpu.ops.matmul(wide, w, {}, terms, Write::kStore);
    expect_close_swiglu(out, sums, terms, k);
  }
};

TEST_F(CudaMatmulSwigluTest, EveryTypeAndOddSizes) {
  for (const auto& [act, weight] : kActAndWeight)
    for (const int64_t m : {1, 7, 65, 130})
      for (const int64_t ffn : {8, 40, 264})
        for (const int64_t k : {8, 70, 1064}) check(m, ffn, k, act, weight);
}

TEST_F(CudaMatmulSwigluTest, NoRows) { check(0, 16, 64, DType::kBf16, DType::kBf16); }

TEST_F(CudaMatmulSwigluTest, RefusesPartsOfABlock) {
  const HostTensor host_a(DType::kF32, {3, 8}), host_w(DType::kF32, {24, 8}), host_out(DType::kF32, {3, 12});
  const DeviceTensor a(host_a), w(host_w), out(host_out);
  EXPECT_THROW(on_gpu([&](Ops& ops) { ops.matmul_swiglu(a, w, out); }), Error);
}

}  // namespace
}  // namespace lfm2
