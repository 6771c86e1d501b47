// grouped_matmul on the GPU, compared with its specification. A row's bits must not depend on the other rows.
#include <gtest/gtest.h>

#include <vector>

#include "cuda/gpu.h"
#include "support/product_cases.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaGroupedMatmulTest : ::testing::Test {
  GpuUnderTest gpu_ops;

  HostTensor grouped(const HostTensor& a, const HostTensor& w, const std::vector<double>& split) {
    HostTensor out(a->dtype, {a->dim(0), w->dim(1)});
    gpu_ops.run([](Ops& ops, const auto&... tensors) { ops.grouped_matmul(tensors...); }, a, w, offsets_of(split), out);
    return out;
  }
};

TEST_F(CudaGroupedMatmulTest, EveryTypeAndSplit) { check_grouped_matmul({&gpu_ops}); }

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
