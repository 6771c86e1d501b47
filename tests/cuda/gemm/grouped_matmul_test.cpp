// grouped_matmul on the GPU, compared with the CPU's operator. A row's bits must not depend on the other rows.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "cuda/gemm/summation.h"
#include "cuda/gpu.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaGroupedMatmulTest : ::testing::Test {
  CpuReference cpu;

  HostTensor grouped(const HostTensor& a, const HostTensor& w, const std::vector<double>& split) {
    HostTensor offsets(DType::kI32, {w->dim(0) + 1}), out(a->dtype, {a->dim(0), w->dim(1)});
    offsets.fill(split);
    const DeviceTensor device_a(a), device_w(w), device_offsets(offsets), device_out(out);
    on_gpu([&](Ops& ops) { ops.grouped_matmul(device_a, device_w, device_offsets, device_out); });
    device_out.fetch(out);
    return out;
  }
};

TEST_F(CudaGroupedMatmulTest, EveryTypeAndSplit) {
  const std::vector<std::vector<double>> splits = {{0, 3, 3, 10, 150, 151},
                                                   {0, 0, 0, 151, 151, 151},
                                                   {0, 151, 151, 151, 151, 151},
                                                   {0, 30, 60, 90, 120, 151},
                                                   {0, 0, 0, 0, 0, 151}};
  for (const auto& [act, weight] : {std::pair{DType::kF32, DType::kF32},
                                    {DType::kF32, DType::kBf16},
                                    {DType::kBf16, DType::kBf16},
                                    {DType::kF16, DType::kF16}})
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{70, 1100}, {264, 64}, {1, 9}}) {
      SCOPED_TRACE(fmt::format("{} {} n {} k {}", name(act), name(weight), n, k));
      HostTensor a(act, {151, k}), w(weight, {5, n, k});
      a.fill_random(5);
      w.fill_random(6);
      HostTensor wide(DType::kF32, {151, k}), all_w(weight, {5, n, k});
      wide.fill(magnitudes(a));
      all_w.fill(magnitudes(w));
      for (const auto& split : splits) {
        HostTensor offsets(DType::kI32, {6}), expected(act, {151, n}), most(DType::kF32, {151, n});
        offsets.fill(split);
        cpu.ops.grouped_matmul(a, w, offsets, expected);
        cpu.ops.grouped_matmul(wide, all_w, offsets, most);
        expect_close_to_cpu(grouped(a, w, split), expected, most.values(), summation_units(act, k));
      }
    }
}

TEST_F(CudaGroupedMatmulTest, ManyExperts) {
  for (const DType act : {DType::kF32, DType::kBf16}) {
    const int64_t experts = 70, n = 40, k = 72, rows = 70 * 69 / 2;
    HostTensor a(act, {rows, k}), w(act, {experts, n, k}), offsets(DType::kI32, {experts + 1});
    HostTensor expected(act, {rows, n}), most(DType::kF32, {rows, n}), wide(DType::kF32, {rows, k});
    std::vector<double> split;
    // Expert e has e rows.
    for (int64_t e = 0; e <= experts; ++e) split.push_back(static_cast<double>(e * (e - 1) / 2));
    split[0] = 0;
    offsets.fill(split);
    a.fill_random(5);
    w.fill_random(6);
    cpu.ops.grouped_matmul(a, w, offsets, expected);
    const HostTensor out = grouped(a, w, split);
    wide.fill(magnitudes(a));
    w.fill(magnitudes(w));
    cpu.ops.grouped_matmul(wide, w, offsets, most);
    expect_close_to_cpu(out, expected, most.values(), summation_units(act, k));
  }
}

TEST_F(CudaGroupedMatmulTest, NoRows) {
  HostTensor a(DType::kBf16, {0, 16}), w(DType::kBf16, {3, 8, 16});
  w.fill_random(1);
  grouped(a, w, {0, 0, 0, 0});
}

// A row's bits are the same whichever rows share its expert, and whatever tile that gives.
TEST_F(CudaGroupedMatmulTest, InvarianceOfARowsBits) {
  const int64_t experts = 4, n = 320, k = 1792, rows = 700;
  for (const DType act : kFloatTypes) {
    HostTensor a(act, {rows, k}), w(act, {experts, n, k});
    a.fill_random(7);
    for (int64_t e = 0; e < experts; ++e) {  // the same weights for every expert
      HostTensor one(act, {n, k});
      one.fill_random(8);
      std::memcpy(w->at(e).data, one->data, one->bytes());
    }
    const HostTensor expected = grouped(a, w, {0, 700, 700, 700, 700});
    for (const auto& split : {std::vector<double>{0, 1, 130, 131, 700}, {0, 200, 201, 601, 700}, {0, 0, 0, 0, 700}})
      EXPECT_TRUE(same_bits(grouped(a, w, split), expected)) << name(act);
    HostTensor few(act, {90, k});
    std::memcpy(few->data, a->data, few->bytes());
    EXPECT_TRUE(same_bits(grouped(few, w, {0, 20, 21, 85, 90}), expected->rows(0, 90))) << name(act);
  }
}

}  // namespace
}  // namespace lfm2
