// norm_matmul on the GPU gives the bits of its two operators one after the other.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cuda/sequences.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaNormMatmulTest : ::testing::Test {
  struct Case {
    int64_t m = 1, n = 48, k = 64;
    DType act = DType::kBf16, norm = act, out = act;
    bool bias = false;
    float spread = 1;
  };

  static void check(const Case& c) {
    SCOPED_TRACE(fmt::format("m {} n {} k {} {} norm {} to {}{}", c.m, c.n, c.k, name(c.act), name(c.norm), name(c.out),
                             c.bias ? ", bias" : ""));
    HostTensor a(c.act, {c.m, c.k}), scale(c.norm, {c.k}), w(c.act, {c.n, c.k}), bias(c.act, {c.n});
    a.fill_random(1, c.spread);
    scale.fill_random(2);
    w.fill_random(3, 2 / std::sqrt(static_cast<float>(c.k)));
    bias.fill_random(4);
    const HostTensor no_rows = nans(c.act, {c.m, c.k}), expected = nans(c.out, {c.m, c.n});
    const HostTensor out = nans(c.out, {c.m, c.n});
    const DeviceTensor x(a), weight(scale), matrix(w), terms(bias);
    const DeviceTensor apart_normed(no_rows), normed(no_rows), apart(out), together(out);
    const Tensor term = c.bias ? static_cast<const Tensor&>(terms) : Tensor();
    on_gpu([&](Ops& ops) {
      ops.rms_norm(x, weight, 1e-5f, apart_normed);
      ops.matmul(apart_normed, matrix, term, apart, Write::kStore);
      ops.norm_matmul(x, weight, 1e-5f, matrix, term, normed, together);
    });
    apart.fetch(expected);
    together.fetch(out);
    EXPECT_TRUE(same_bits(out, expected));
    normed.fetch(no_rows);
  }
};

TEST_F(CudaNormMatmulTest, EveryNumberOfRows) {
  for (int64_t m = 1; m <= 10; ++m)
    for (const DType act : kFloatTypes)
      for (const bool bias : {false, true}) check({.m = m, .k = 320, .act = act, .bias = bias});
}

// Rows that fill no whole pieces of k or trees of the norm's sum, and rows that are too long; one to seven tiles of a
// block, and more units than multiprocessors.
TEST_F(CudaNormMatmulTest, EveryWidth) {
  for (const int64_t m : {1, 2, 5, 8})
    for (const int64_t k : {8, 36, 72, 256, 264, 1024, 1096, 1792, 2040, 2048, 2056, 4096})
      for (const int64_t n : {8, 48, 3072})
        for (const DType act : {DType::kBf16, DType::kF16}) check({.m = m, .n = n, .k = k, .act = act});
  for (const int64_t n : {5000, 7000, 9000, 11000, 13000, 15000, 20000}) check({.m = 3, .n = n, .k = 128});
}

TEST_F(CudaNormMatmulTest, OtherTypes) {
  check({.m = 3, .norm = DType::kF32});
  check({.m = 3, .out = DType::kF32});
  check({.m = 3, .act = DType::kF16, .norm = DType::kBf16});
}

TEST_F(CudaNormMatmulTest, RowsOfEveryMagnitude) {
  for (const float spread : {0.0f, 1e-6f, 1e3f, 1e30f}) check({.m = 4, .k = 2048, .spread = spread});
}

}  // namespace
}  // namespace lfm2
