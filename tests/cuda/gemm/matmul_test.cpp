// matmul on the GPU, compared with its specification. A row's bits must not depend on the other rows.
#include <gtest/gtest.h>

#include <utility>

#include "cuda/gpu.h"
#include "support/product_cases.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaMatmulTest : ::testing::Test {
  GpuUnderTest gpu_ops;
};

TEST_F(CudaMatmulTest, OddSizes) {
  for (const DType type : kFloatTypes) check_matmul_of_odd_sizes({&gpu_ops}, type);
}

TEST_F(CudaMatmulTest, EveryTypeBiasAndAdd) { check_matmul_of_every_type({&gpu_ops}, false); }

TEST_F(CudaMatmulTest, EmptyInputs) { check_matmul_of_nothing({&gpu_ops}); }

TEST_F(CudaMatmulTest, AgreesWithTransformers) { check_matmul_of_transformers({&gpu_ops}); }

TEST_F(CudaMatmulTest, RefusesShapesAndTypesThatDisagree) {
  const HostTensor host_a(DType::kF32, {3, 40}), host_w(DType::kF32, {9, 41}), host_out(DType::kF32, {3, 9});
  const HostTensor host_half(DType::kBf16, {3, 41});
  const DeviceTensor a(host_a), w(host_w), out(host_out), half(host_half);
  EXPECT_THROW(on_gpu([&](Ops& ops) { ops.matmul(a, w, {}, out, Write::kStore); }), Error);
  EXPECT_THROW(on_gpu([&](Ops& ops) { ops.matmul(half, w, {}, out, Write::kStore); }), Error);
}

// Tests the shapes of the model (in_proj, out_proj, qkv, router, dense, head) and odd ones. Every m must give the first
// m rows of the whole.
TEST_F(CudaMatmulTest, InvarianceOfARowsBits) {
  constexpr int64_t kRows = 1000;
  struct Product {
    int64_t n, k;
    DType act, weight, out;
    bool bias;
    Write write;
  };
  const DType f32 = DType::kF32, bf16 = DType::kBf16, f16 = DType::kF16;
  for (const Product& p : {Product{6144, 2048, bf16, bf16, bf16, false, Write::kStore},
                           {2048, 2048, bf16, bf16, bf16, false, Write::kAdd},
                           {3072, 2048, f16, f16, f16, false, Write::kStore},
                           {32, 2048, bf16, bf16, f32, false, Write::kStore},
                           {2048, 2048, bf16, bf16, bf16, true, Write::kStore},
                           {14336, 512, bf16, bf16, bf16, false, Write::kStore},
                           {65536, 256, bf16, bf16, f32, false, Write::kStore},
                           {2048, 7168, bf16, bf16, bf16, false, Write::kAdd},
                           {2048, 2048, f32, f32, f32, false, Write::kAdd},
                           {32, 2048, f32, f32, f32, false, Write::kStore},
                           {192, 64, f32, f32, f32, true, Write::kStore},
                           {192, 64, bf16, bf16, bf16, true, Write::kStore},
                           {72, 520, f32, bf16, f32, false, Write::kStore},
                           {73, 131, bf16, bf16, bf16, true, Write::kAdd}}) {
    const MatmulCase whole{kRows, p.n, p.k, p.act, p.weight, p.out, p.bias, p.write};
    SCOPED_TRACE(whole.text());
    const MatmulInputs in(whole);
    const HostTensor expected = matmul(gpu_ops, whole, in);
    const DeviceTensor a(in.a), w(in.w), bias(in.bias), old(in.old);
    const HostTensor again(p.out, {kRows, p.n});
    std::vector<std::pair<int64_t, int64_t>> pieces;  // (first row, number of rows)
    for (int64_t m = 1; m <= 300; m += p.n > 10000 ? 37 : 1) pieces.push_back({0, m});
    for (const auto& piece :
         {std::pair<int64_t, int64_t>{0, 512}, {0, kRows}, {999, 1}, {500, 33}, {37, 128}, {300, 700}})
      pieces.push_back(piece);
    for (const auto& [first, m] : pieces) {
      HostTensor part(p.out, {m, p.n});
      if (p.write == Write::kAdd) std::memcpy(part->data, in.old->rows(first, m).data, part->bytes());
      const DeviceTensor out(part);
      on_gpu([&](Ops& ops) { ops.matmul(a->rows(first, m), w, p.bias ? Tensor(bias) : Tensor(), out, p.write); });
      out.fetch(part);
      ASSERT_TRUE(same_bits(part, expected->rows(first, m))) << "rows " << first << " + " << m;
    }
  }
}

}  // namespace
}  // namespace lfm2
