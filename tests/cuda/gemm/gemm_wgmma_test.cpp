// The Hopper product of 16-bit types, called by its launcher and compared with fp64, with every epilogue, split and
// edge. A row's bits must not depend on the rows beside it, nor on the tile.
#include "kernels/cuda/gemm/gemm_wgmma.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "cuda/common/hopper_test.h"
#include "cuda/gemm/product.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_stream.h"

namespace lfm2 {
namespace {

using namespace test;

Operands operands(const Product& p) { return Operands(p, 2 / std::sqrt(static_cast<float>(p.k))); }

// Where tile.columns is 0, launch_gemm_wgmma chooses the tile.
HostTensor run_wgmma(const Product& p, const Operands& in, WgmmaTile tile = {0, 0, 0},
                     Visible offsets_visible = Visible::kAfterWait) {
  return run(p, in, [&](GemmArgs args) {
    args.offsets_visible = offsets_visible;
    if (tile.columns == 0)
      launch_gemm_wgmma(nullptr, args, p.act, p.out);
    else
      launch_gemm_wgmma(nullptr, args, p.act, p.out, tile);
  });
}

std::vector<WgmmaTile> tiles_for(Epilogue epilogue, bool plain = true) {
  std::vector<WgmmaTile> tiles;
  if (epilogue == Epilogue::kSwiglu)
    tiles.assign(std::begin(kWgmmaSwigluTiles), std::end(kWgmmaSwigluTiles));
  else
    tiles.assign(std::begin(kWgmmaTiles), std::end(kWgmmaTiles));
  if (plain && epilogue != Epilogue::kAdd)
    tiles.insert(tiles.end(), std::begin(kWgmmaTransposedTiles), std::end(kWgmmaTransposedTiles));
  return tiles;
}

std::string text(WgmmaTile tile) {
  return fmt::format("tile of {} rows, {} columns, clusters of {}{}", tile.rows, tile.columns, tile.cluster,
                     tile.transposed ? ", transposed" : "");
}

struct CudaGemmWgmmaTest : HopperTest {
  // Every element must be near fp64's, and every tile must give the same bits.
  void check(const Product& p) {
    SCOPED_TRACE(p.text());
    const Operands in = operands(p);
    const HostTensor out = run_wgmma(p, in);
    // Tensor cores cut off instead of rounding, so every step of 16 may lose a unit in the same direction.
    const double unit = (2 * static_cast<double>(p.k) / 16 + 16) * 0x1p-24;
    std::vector<double> expected(out.size()), tolerance(out.size());
    for (int64_t row = 0; row < p.m; ++row)
      for (int64_t column = 0; column < p.columns(); ++column) {
        const auto i = static_cast<size_t>(row * p.columns() + column);
        if (p.epilogue == Epilogue::kSwiglu) {
          const auto [gate, up] = gate_up_of(p, in, row, column);
          expected[i] = silu(gate.exact) * up.exact;
          tolerance[i] =
              unit * (1.1 * gate.magnitude * std::fabs(up.exact) + up.magnitude * std::fabs(silu(gate.exact))) +
              0x1p-20 * std::fabs(expected[i]);
        } else {
          const Sum sum = sum_of(p, in, row, column);
          const double old = p.epilogue == Epilogue::kAdd ? in.old.get(i) : 0;
          expected[i] = sum.exact + old;
          tolerance[i] = unit * (sum.magnitude + std::fabs(old));
        }
        tolerance[i] += 2 * store_error(p.out, expected[i]);
      }
    expect_close(out, expected, tolerance);
    for (const WgmmaTile tile : tiles_for(p.epilogue, p.out == p.act && p.bias == DType::kI32)) {
      EXPECT_TRUE(same_bits(run_wgmma(p, in, tile), out)) << text(tile) << ": other bits";
      if (p.split.empty()) continue;
      EXPECT_TRUE(same_bits(run_wgmma(p, in, tile, Visible::kBeforeWait), out))
          << text(tile) << " with visible offsets: other bits";
    }
  }
};

TEST_F(CudaGemmWgmmaTest, EveryEpilogueAndEdge) {
  for (const DType act : {DType::kBf16, DType::kF16})
    for (const int64_t m : {1, 17, 64, 65, 128, 129, 193, 300})
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{8, 8}, {16, 64}, {272, 72}, {304, 584}}) {
        for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kAdd})
          for (const DType out : {act, DType::kF32}) check(half_product(m, n, k, act, out, epilogue));
        if (n % 16 == 0) check(half_product(m, n, k, act, act, Epilogue::kSwiglu));
      }
}

// A group of more rows than the tiles of one band have, in an odd number of column tiles, and rows beside its pairs.
TEST_F(CudaGemmWgmmaTest, SeveralBands) {
  for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kAdd, Epilogue::kSwiglu})
    check(half_product(9500, 528, 8, DType::kBf16, DType::kBf16, epilogue, DType::kI32, {0, 8900, 8900, 9500}));
}

TEST_F(CudaGemmWgmmaTest, Bias) {
  for (const DType bias : kFloatTypes)
    for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kAdd})
      for (const DType out : {DType::kBf16, DType::kF32})
        check(half_product(70, 264, 136, DType::kBf16, out, epilogue, bias));
}

TEST_F(CudaGemmWgmmaTest, AnyNumberOfMultiprocessorsGivesTheSameBits) {
  for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kSwiglu})
    for (const std::vector<double>& split : {std::vector<double>{}, {0, 3, 3, 133, 198, 199, 700}}) {
      const Product p = half_product(700, 528, 136, DType::kBf16, DType::kBf16, epilogue, DType::kI32, split);
      SCOPED_TRACE(p.text());
      const Operands in = operands(p);
      const HostTensor expected = run_wgmma(p, in);
      for (const WgmmaTile tile : tiles_for(epilogue))
        for (const int left : {4, 100, cuda_device_facts(0).multiprocessors - 2})
          EXPECT_TRUE(same_bits(run(p, in,
                                    [&](GemmArgs args) {
                                      args.reserved_sms = left;
                                      launch_gemm_wgmma(nullptr, args, p.act, p.out, tile);
                                    }),
                                expected))
              << text(tile) << ", " << left << " left";
    }
}

TEST_F(CudaGemmWgmmaTest, EverySplit) {
  for (const std::vector<double>& split : {std::vector<double>{0, 3, 3, 133, 198, 199, 451},
                                           {0, 0, 0, 300},
                                           {0, 300, 300, 300},
                                           {0, 64, 128, 320, 513, 700},
                                           {0, 200, 424, 681, 906},
                                           {0, 1, 2, 3, 4}})
    for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kAdd, Epilogue::kSwiglu})
      check(half_product(static_cast<int64_t>(split.back()), 272, 136, DType::kBf16, DType::kBf16, epilogue,
                         DType::kI32, split));
}

TEST_F(CudaGemmWgmmaTest, ManyGroups) {
  std::vector<double> split = {0};
  for (int group = 0; group < 1024; ++group) split.push_back(split.back() + (group % 7 == 0 ? group % 5 : 0));
  check(half_product(static_cast<int64_t>(split.back()), 48, 72, DType::kBf16, DType::kBf16, Epilogue::kSwiglu,
                     DType::kI32, split));
}

TEST_F(CudaGemmWgmmaTest, NothingToDo) {
  check(half_product(0, 16, 64));
  check(half_product(0, 16, 64, DType::kBf16, DType::kBf16, Epilogue::kSwiglu, DType::kI32, {0, 0, 0}));
}

TEST_F(CudaGemmWgmmaTest, InfinitiesAndNansStayInTheirRows) {
  const Product p = half_product(5, 16, 64);
  Operands in = operands(p);
  in.w.fill(1);
  in.a.fill(1);
  in.a.set(5, INFINITY);
  in.a.set(64 + 7, -INFINITY);
  in.a.set(128 + 9, NAN);
  const HostTensor out = run_wgmma(p, in);
  for (size_t column = 0; column < 16; ++column) {
    EXPECT_EQ(out.get(column), INFINITY);
    EXPECT_EQ(out.get(16 + column), -INFINITY);
    EXPECT_TRUE(std::isnan(out.get(32 + column)));
    EXPECT_EQ(out.get(48 + column), 64);
    EXPECT_EQ(out.get(64 + column), 64);
  }
}

// Tile buffers keep rows of the tiles before, which must not reach the rows of others.
TEST_F(CudaGemmWgmmaTest, NansStayInTheirGroups) {
  constexpr int kGroups = 400;  // several for each multiprocessor
  std::vector<double> split = {0};
  for (int group = 0; group < kGroups; ++group) split.push_back(split.back() + (group < kGroups / 2 ? 128 : 3));
  const Product p = half_product(static_cast<int64_t>(split.back()), 16, 640, DType::kBf16, DType::kBf16,
                                 Epilogue::kStore, DType::kI32, split);
  Operands in = operands(p);
  const auto first = static_cast<int64_t>(split[kGroups / 2]);
  const HostTensor expected = run_wgmma(p, in);
  for (int64_t i = 0; i < first * p.k; ++i) in.a.set(static_cast<size_t>(i), NAN);
  for (const WgmmaTile tile : tiles_for(p.epilogue)) {
    const HostTensor out = run_wgmma(p, in, tile);
    EXPECT_TRUE(same_bits(out->rows(first, p.m - first), expected->rows(first, p.m - first))) << text(tile);
  }
}

// Where k ends within a tile buffer, zeros come behind it. They must not change the sign of a zero.
TEST_F(CudaGemmWgmmaTest, ZerosOfEitherSign) {
  for (const int64_t k : {8, 64, 192, 256})
    for (const double zero : {0.0, -0.0}) {
      const Product p = half_product(3, 48, k);
      Operands in = operands(p);
      in.a.fill(zero);
      in.w.fill(1);
      const HostTensor out = run_wgmma(p, in, {128, 256, 1});
      for (const WgmmaTile tile : tiles_for(p.epilogue))
        EXPECT_TRUE(same_bits(run_wgmma(p, in, tile), out)) << text(tile) << ", k " << k << ", " << zero;
    }
}

// Products that take one another's output, in turn with that of the one before that, start before the previous one has
// ended, and must give the bits of those that do not. (That w is there is the only thing they may count on.)
TEST_F(CudaGemmWgmmaTest, ChainOfDependentLaunches) {
  constexpr int kLinks = 12;
  for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kAdd})
    for (const int64_t m : {24, 200}) {
      const Product p = half_product(m, 640, 640, DType::kBf16, DType::kBf16, epilogue);
      const Operands in = operands(p);
      const DeviceTensor w(in.w);
      const cudaStream_t stream = dynamic_cast<CudaStream&>(gpu().compute()).native();
      const auto chain = [&](WgmmaTile tile, bool in_turn) {
        const DeviceTensor first(in.a), second(in.a);
        gpu().compute().drain();
        for (int link = 0; link < kLinks; ++link) {
          const GemmArgs args{.a = (link % 2 == 0 ? first : second)->data,
                              .w = {w->data, w->dtype},
                              .bias = {},
                              .out = (link % 2 == 0 ? second : first)->data,
                              .offsets = nullptr,
                              .m = p.m,
                              .n = p.n,
                              .k = p.k,
                              .groups = 1,
                              .epilogue = epilogue};
          launch_gemm_wgmma(stream, args, p.act, p.out, tile);
          if (in_turn) gpu().compute().drain();
        }
        HostTensor result(p.out, {p.m, p.n});
        first.fetch(result);
        return result;
      };
      const HostTensor expected = chain({128, 256, 1}, true);
      for (const WgmmaTile tile : tiles_for(epilogue))
        EXPECT_TRUE(same_bits(chain(tile, false), expected)) << p.text() << ", " << text(tile);
    }
}

// Needs no GPU.
TEST(WgmmaTileTest, IsOneThatTheProductTakesAndHasRoomForUnevenGroups) {
  constexpr int64_t kGroups = 32;
  for (const auto& [epilogue, out] : {std::pair{Epilogue::kStore, DType::kBf16},
                                      {Epilogue::kStore, DType::kF32},
                                      {Epilogue::kAdd, DType::kBf16},
                                      {Epilogue::kAdd, DType::kF32},
                                      {Epilogue::kSwiglu, DType::kBf16}})
    for (const bool grouped : {false, true})
      for (const int64_t n : {16, 2048, 3072, 14336, 65536})
        for (int64_t m = 1; m <= 16384; m += m / 8 + 1) {
          const int32_t offsets = 0;
          const GemmArgs args{.a = nullptr,
                              .w = {},
                              .bias = {},
                              .out = nullptr,
                              .offsets = grouped ? &offsets : nullptr,
                              .m = m,
                              .n = n,
                              .k = 2048,
                              .groups = grouped ? kGroups : 1,
                              .epilogue = epilogue};
          SCOPED_TRACE(fmt::format("m {} n {} epilogue {} to {} grouped {}", m, n, static_cast<int>(epilogue),
                                   name(out), grouped));
          const WgmmaTile tile = choose_wgmma_tile(args, out, 132);
          const std::vector<WgmmaTile> tiles = tiles_for(epilogue, out == DType::kBf16);
          EXPECT_NE(std::find(tiles.begin(), tiles.end(), tile), tiles.end()) << text(tile);
          const bool few = grouped && epilogue != Epilogue::kAdd && out == DType::kBf16 && m <= kGroups * 192;
          EXPECT_EQ(tile.transposed, few) << text(tile);
          EXPECT_TRUE(!few || m + std::min(m, kGroups * 64) <= kGroups * tile.rows) << text(tile);
        }
}

// Every m gives the first m rows of the whole, and so does every split into groups with the same weights.
TEST_F(CudaGemmWgmmaTest, InvarianceOfARowsBits) {
  for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kAdd, Epilogue::kSwiglu}) {
    const Product whole = half_product(700, 528, 1096, DType::kBf16, DType::kBf16, epilogue);
    const Operands in = operands(whole);
    const HostTensor expected = run_wgmma(whole, in);
    const auto rows_of = [](const HostTensor& from, const HostTensor& to) {
      std::memcpy(to->data, from->data, to->bytes());
    };
    for (const int64_t m : {1, 2, 63, 64, 65, 100, 128, 129, 192, 193, 256, 257, 513}) {
      Product part = whole;
      part.m = m;
      const Operands few = operands(part);
      rows_of(in.a, few.a);
      rows_of(in.w, few.w);
      rows_of(in.old, few.old);
      EXPECT_TRUE(same_bits(run_wgmma(part, few), expected->rows(0, m))) << m << " rows";
    }
    for (const std::vector<double>& split : {std::vector<double>{0, 1, 130, 131, 700}, {0, 200, 201, 601, 700}}) {
      Product grouped = whole;
      grouped.split = split;
      const Operands same = operands(grouped);
      rows_of(in.a, same.a);
      rows_of(in.old, same.old);
      for (int64_t group = 0; group < grouped.groups(); ++group)
        std::memcpy(same.w->at(group).data, in.w->data, in.w->bytes());
      EXPECT_TRUE(same_bits(run_wgmma(grouped, same), expected)) << grouped.text();
    }
  }
}

}  // namespace
}  // namespace lfm2
