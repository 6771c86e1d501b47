// The tiles of fp8 products on Hopper: none changes a bit.
#include <gtest/gtest.h>

#include <cstring>
#include <iterator>
#include <vector>

#include "cuda/common/hopper_test.h"
#include "cuda/gpu.h"
#include "kernels/cuda/gemm/gemm_wgmma.h"
#include "support/fp8_cases.h"

namespace lfm2::test {
namespace {

class CudaGemmFp8Test : public HopperTest {};

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
                launch_gemm_fp8(nullptr, args, tile);
              },
              a.elements, a.scales, w.elements, w.scales, offsets, results.back());
          EXPECT_EQ(std::memcmp(results.back()->data, results.front()->data, results.front()->bytes()), 0)
              << tile.rows << " x " << tile.columns << ", cluster " << tile.cluster << " transposed "
              << tile.transposed;
        }
      }
}

}  // namespace
}  // namespace lfm2::test
