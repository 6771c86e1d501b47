// The tiles of fp8 products on Hopper: none changes a bit.
#include <gtest/gtest.h>

#include <cstring>
#include <iterator>
#include <vector>

#include "cuda/common/hopper_test.h"
#include "cuda/gpu.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/fused/few_fp8_rows.h"
#include "kernels/cuda/gemm/gemm_wgmma.h"
#include "support/fp8_cases.h"

namespace lfm2::test {
namespace {

class CudaGemmFp8Test : public HopperTest {
 protected:
  // The stream of the operators and copies, which does not wait for launches on others.
  static cudaStream_t stream() { return dynamic_cast<CudaStream&>(gpu().compute()).native(); }
};

TEST_F(CudaGemmFp8Test, NoTileChangesABit) {
  for (const Fp8Scheme scheme : {kBlock, kChannel})
    for (const bool swiglu : {false, true})
      for (const std::vector<double>& split : {std::vector<double>{0, 300}, {0, 3, 3, 133, 198, 199, 460}}) {
        const auto rows = static_cast<int64_t>(split.back()), experts = static_cast<int64_t>(split.size()) - 1,
                   n = int64_t{272}, k = int64_t{432};
        const Fp8Matrix a({rows, k}, {1, scheme.group}, 1), w({experts, n, k}, scheme, 2);
        HostTensor offsets(DType::kI32, {experts + 1});
        offsets.fill(split);
        std::vector<WgmmaTile> tiles;
        if (swiglu) tiles.assign(std::begin(kFp8SwigluTiles), std::end(kFp8SwigluTiles));
        if (!swiglu) tiles.assign(std::begin(kFp8Tiles), std::end(kFp8Tiles));
        tiles.insert(tiles.end(), std::begin(kFp8TransposedTiles), std::end(kFp8TransposedTiles));
        GpuUnderTest gpu_ops;
        std::vector<HostTensor> results;
        for (const WgmmaTile tile : tiles) {
          results.emplace_back(DType::kBf16, std::initializer_list<int64_t>{rows, swiglu ? n / 2 : n});
          gpu_ops.run(
              [&](Ops&, const Tensor& a8, const Tensor& a_scales, const Tensor& w8, const Tensor& w_scales,
                  const Tensor& ends, const Tensor& to) {
                GemmArgs args{};
                args.a = a8.data, args.w = {w8.data, DType::kF8}, args.out = to.data;
                args.offsets = ends.as<const int32_t>();
                args.m = rows, args.n = n, args.k = k, args.groups = experts;
                args.epilogue = swiglu ? Epilogue::kSwiglu : Epilogue::kStore;
                args.scales = {a_scales.as<float>(), w_scales.as<float>(), rows, static_cast<int>(scheme.rows),
                               static_cast<int>(scheme.group)};
                launch_gemm_fp8(stream(), args, tile);
              },
              a.elements, a.scales, w.elements, w.scales, offsets, results.back());
          EXPECT_EQ(std::memcmp(results.back()->data, results.front()->data, results.front()->bytes()), 0)
              << tile.rows << " x " << tile.columns << ", cluster " << tile.cluster << " transposed "
              << tile.transposed;
        }
      }
}

// Blocks that round their rows themselves, and tiles that write from registers: with bias and addition, too.
TEST_F(CudaGemmFp8Test, RoundedRowsHaveTheBitsOfQuantize) {
  constexpr WgmmaTile kTiles[] = {{64, 64, 1},       {128, 128, 1},      {128, 128, 2},
                                  {16, 64, 1, true}, {16, 128, 1, true}, kFp8RoundingTile};
  for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kAdd})
    for (const bool has_bias : {false, true})
      for (const int64_t k : {16, 432, 1792, 2048})
        for (const std::vector<double>& split : {std::vector<double>{0, 1}, {0, 16}, {0, 3, 3, 22, 60}}) {
          const auto rows = static_cast<int64_t>(split.back()), experts = static_cast<int64_t>(split.size()) - 1,
                     n = int64_t{200};
          SCOPED_TRACE(fmt::format("{} rows, k {}, add {}, bias {}", rows, k, epilogue == Epilogue::kAdd, has_bias));
          HostTensor a(DType::kBf16, {rows, k}), bias(DType::kBf16, {n}), offsets(DType::kI32, {experts + 1});
          a.fill_random(1, 2.0f);
          bias.fill_random(2, 2.0f);
          offsets.fill(split);
          const Fp8Matrix rounded({rows, k}, {1, 0}, 3), w({experts, n, k}, kChannel, 4);
          GpuUnderTest gpu_ops;
          std::vector<HostTensor> results;
          for (const WgmmaTile tile : kTiles) {
            results.push_back(HostTensor(DType::kBf16, {rows, n}));
            results.back().fill_random(5, 2.0f);
            gpu_ops.run(
                [&](Ops& ops, const Tensor& in, const Tensor& a8, const Tensor& a_scales, const Tensor& w8,
                    const Tensor& w_scales, const Tensor& more, const Tensor& ends, const Tensor& to) {
                  ops.quantize(in, rounded.with(a8, a_scales));
                  GemmArgs args{};
                  args.a = tile.rounds ? in.data : a8.data;
                  args.w = {w8.data, DType::kF8};
                  if (has_bias) args.bias = {more.data, DType::kBf16};
                  args.out = to.data;
                  args.offsets = ends.as<const int32_t>();
                  args.m = rows, args.n = n, args.k = k, args.groups = experts, args.epilogue = epilogue;
                  args.scales = {tile.rounds ? nullptr : a_scales.as<float>(), w_scales.as<float>(), rows, 1, 0};
                  launch_gemm_fp8(stream(), args, tile);
                },
                a, rounded.elements, rounded.scales, w.elements, w.scales, bias, offsets, results.back());
            EXPECT_EQ(std::memcmp(results.back()->data, results.front()->data, results.front()->bytes()), 0)
                << tile.rows << " x " << tile.columns << ", rounds " << tile.rounds;
          }
        }
}

// Few rows, rounded or not, have the bits of a tile: every number of rows and of tiles of a block.
TEST_F(CudaGemmFp8Test, FewRowsHaveTheBitsOfTiles) {
  for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kAdd})
    for (const auto& [n, k] :
         {std::pair<int64_t, int64_t>{8, 256}, {200, 1792}, {2048, 2048}, {3072, 2048}, {4096, 512}, {2048, 7168}})
      for (int64_t m = 1; m <= 8; ++m) {
        SCOPED_TRACE(fmt::format("m {} n {} k {} add {}", m, n, k, epilogue == Epilogue::kAdd));
        HostTensor a(DType::kBf16, {m, k}), bias(DType::kBf16, {n});
        a.fill_random(1, 2.0f);
        bias.fill_random(2, 2.0f);
        const Fp8Matrix rounded({m, k}, {1, 0}, 3), w({n, k}, kChannel, 4);
        GpuUnderTest gpu_ops;
        std::vector<HostTensor> results;
        for (const bool few : {false, true})
          for (const bool rounds : {false, true}) {
            results.push_back(HostTensor(DType::kBf16, {m, n}));
            results.back().fill_random(5, 2.0f);
            if (rounds && k > kMaxRoundedK) continue;
            gpu_ops.run(
                [&](Ops& ops, const Tensor& in, const Tensor& a8, const Tensor& a_scales, const Tensor& w8,
                    const Tensor& w_scales, const Tensor& more, const Tensor& to) {
                  ops.quantize(in, rounded.with(a8, a_scales));
                  GemmArgs args{};
                  args.a = rounds ? in.data : a8.data;
                  args.w = {w8.data, DType::kF8};
                  if (m % 2 == 0) args.bias = {more.data, DType::kBf16};
                  args.out = to.data;
                  args.m = m, args.n = n, args.k = k, args.groups = 1, args.epilogue = epilogue;
                  args.scales = {rounds ? nullptr : a_scales.as<float>(), w_scales.as<float>(), m, 1, 0};
                  ASSERT_TRUE(prefers_few_fp8_rows(args));
                  if (few)
                    launch_matmul_few_fp8_rows(stream(), args);
                  else
                    launch_gemm_fp8(stream(), args, rounds ? kFp8RoundingTile : WgmmaTile{16, 64, 1, true});
                },
                a, rounded.elements, rounded.scales, w.elements, w.scales, bias, results.back());
            EXPECT_TRUE(same_bits(results.back(), results.front())) << "few " << few << ", rounds " << rounds;
          }
      }
}

// Products that round a themselves where Ops::rounds_operand says so.
TEST_F(CudaGemmFp8Test, OperandsAreRoundedByTheProduct) {
  for (const int64_t m : {1, 7, 8, 16}) {
    const int64_t n = 136, k = 1792;
    HostTensor a(DType::kBf16, {m, k}), one(DType::kBf16, {m, n}), two(DType::kBf16, {m, n});
    a.fill_random(1, 2.0f);
    const Fp8Matrix rounded({m, k}, {1, 0}, 3), w({n, k}, kChannel, 4);
    GpuUnderTest().run(
        [&](Ops& ops, const Tensor& in, const Tensor& a8, const Tensor& a_scales, const Tensor& w8,
            const Tensor& w_scales, const Tensor& by_product, const Tensor& by_operator) {
          const Tensor weight = w.with(w8, w_scales);
          ASSERT_TRUE(ops.rounds_operand(in, weight));
          ops.matmul(in, weight, {}, by_product, Write::kStore);
          ops.quantize(in, rounded.with(a8, a_scales));
          ops.matmul(rounded.with(a8, a_scales), weight, {}, by_operator, Write::kStore);
        },
        a, rounded.elements, rounded.scales, w.elements, w.scales, one, two);
    EXPECT_EQ(std::memcmp(one->data, two->data, two->bytes()), 0) << m;
  }
}

}  // namespace
}  // namespace lfm2::test
