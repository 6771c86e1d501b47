// The matrix product on AMX tiles: fp32 as a sum of bf16 planes, whose products are exact.
//
// A value is cut into planes of 8 significant bits, x = x0 + x1 + x2 exactly (bf16: only x0; fp16: x0 + x1). Each plane
// is the remainder so far, rounded to bf16. The product a w is the sum of all ai wj with i + j < 3; the rest is below
// 2^-23 |a w| and has any sign. A block of k is summed in steps of 32 elements, in pairs (i, i + 16). First come all
// small products (i + j > 0), then the products of the first planes, so that few roundings happen while the sums are
// large. The products are exact. The instruction sums the first elements of the 16 pairs from zero by fused
// multiply-adds, in order, and the second elements likewise. It adds the two sums, and then their sum to the tile's. So
// vector registers give one row the same bits (multiply_one); they reach the speed of memory where tiles do not.
//
// Tiles treat numbers below 2^-126 as zero, and an infinity has no planes. So a sum over a block of k is computed by
// plain fused multiply-adds, as the vector kernels do, if
//   - its row of a or of w holds a number of kLarge or more in the block, or
//   - the tiles' sum is below kLeast, infinite or a NaN.
// Elsewhere the tiles lose less than 2^-85 in a block: 256 elements times 2^-126 for each plane, times less than
// kLarge. That is 2^-6 units in the last place of kLeast. The choice depends on the row of a and the row of w alone, as
// the sum does.
//
// The instruction reads rows of a as they are stored (16 rows, 32 elements), and w as [pairs of elements, columns],
// which is how tiles of weights are stored. The tile of sums is [rows, columns].
#include "kernels/cpu/simd/simd.h"
#include "kernels/cpu/simd/simd_amx_planes.h"
#include "kernels/cpu/simd/simd_amx_sums.h"
#include "kernels/cpu/simd/simd_amx_tiles.h"

namespace lfm2 {
namespace {

void multiply(const PackedProduct& p) {
  configure_tiles();
  constexpr size_t kRows = kHalves * kSide;
  const size_t tiles = (p.rows + kRows - 1) / kRows, tile_bytes = packed_bytes(p.a_type);
  const bool large_w = reinterpret_cast<const Head*>(p.w)->large;
  for (size_t tile = 0; tile < tiles; ++tile) {
    Fetcher w_lines(p.next_w, tile, tiles), out_lines(p.out, tile, tiles);
    const size_t left = p.rows - tile * kRows, rows = left < kRows ? left : kRows;
    const std::byte* a = p.a + tile * tile_bytes;
    with_types(p.w_type, p.a_type, rows > kSide, [&](auto, auto planes_w, auto planes_a, auto both) {
      multiply_block<decltype(planes_w)::kValue, decltype(planes_a)::kValue, decltype(both)::kValue != 0>(
          p.w + kHeadBytes, a + kHeadBytes, steps(p.k), w_lines, out_lines);
    });
    add_block(part_of(p.a_rows, tile * kRows, rows, 0, p.k), p.w_rows,
              p.k > 0 && (large_w || reinterpret_cast<const Head*>(a)->large), p.first, p.sums + tile * kRows * kRows);
  }
  _tile_release();
}

// Packs one step of a tile of weights for multiply_few, some pairs at a time: plane 0 as [halves, pairs, columns], the
// others as [planes, halves, pairs, columns].
template <class T, size_t planes_w>
class StepPacker {
 public:
  static constexpr size_t kParts = kHalves * kSide;

  // `ahead` is what is read soon.
  void begin(const T* step, const std::byte* ahead, std::byte* first_plane, std::byte* others) {
    step_ = step;
    ahead_ = ahead;
    first_plane_ = first_plane;
    others_ = others;
  }
  inline __attribute__((always_inline)) void pack(size_t first, size_t end) {
    for (size_t part = first; part < end; ++part) {
      const size_t i = part / kHalves, half = part % kHalves, offset = half * kTileBytes + i * kRowBytes;
      prefetch_part<T>(ahead_, part);
      __m512i plane[planes_w];
      load_pair_planes(step_, i, half, plane);
      largest_.see(plane[0]);
      _mm512_store_si512(first_plane_ + offset, plane[0]);
      for (size_t j = 1; j < planes_w; ++j)
        _mm512_store_si512(others_ + (j - 1) * kHalves * kTileBytes + offset, plane[j]);
    }
  }
  bool large() const { return largest_.large(); }

 private:
  const T* step_ = nullptr;
  const std::byte* ahead_ = nullptr;
  std::byte *first_plane_ = nullptr, *others_ = nullptr;
  Largest largest_;  // over all blocks so far: a number that is larger than those of this block only costs time
};

// Computes one register tile over all of k, for few rows of a by a tile of weights: w is tiled, because few_tiles is 0.
// The next step of w is packed while the tiles multiply this one.
template <class T, size_t planes_w, size_t planes_a, bool both>
void multiply_few(const FewProduct& p) {
  constexpr size_t kStepA = (both ? 2 : 1) * planes_a * kTileBytes, kSmall = small_products(planes_w, planes_a);
  constexpr size_t kPlane = kHalves * kTileBytes, kSteps = kBlock / kStep;
  using Packer = StepPacker<T, planes_w>;
  // The parts of a step that are packed during each step of a block.
  constexpr size_t kShare = Packer::kParts / kSteps;
  // The first planes of a whole block and of the next block's first step are kept.
  constexpr size_t kKept = kSteps + 1;
  alignas(64) std::byte first_planes[kKept][kPlane], others[2][planes_w > 1 ? (planes_w - 1) * kPlane : 1];
  Packer packer;
  const size_t k = p.w.k, all_steps = steps(k);
  const auto begin = [&](size_t step) {
    packer.begin(static_cast<const T*>(p.w.data) + step * kStep * kTileColumns, ahead_of(p, step),
                 first_planes[step % kKept], others[step % 2]);
  };
  const auto w_of = [&](size_t step) __attribute__((always_inline)) {
    return [ first = first_planes[step % kKept], other = others[step % 2] ](size_t i, size_t half)
        __attribute__((always_inline)) {
      return (i == 0 ? first : other + (i - 1) * kPlane) + half * kTileBytes;
    };
  };
  for (size_t first = 0; first < all_steps; first += kSteps) {
    const size_t count = all_steps - first < kSteps ? all_steps - first : kSteps;
    const std::byte* a_block = p.a + first / kSteps * p.a_stride;
    const std::byte* a = a_block + kHeadBytes;
    const bool more = first + count < all_steps;
    {
      const DenormalsAreZeros mode;
      if (first == 0) {
        begin(0);
        packer.pack(0, Packer::kParts);
      }
      zero_tiles();
      if constexpr (kSmall > 0)
        for (size_t s = 0; s < count; ++s) {
          // Keeps the compiler from moving the stores of the packer after the loads of the tiles.
          asm volatile("" ::: "memory");
          const bool next = s + 1 < count;
          if (next) begin(first + s + 1);
          multiply_small<planes_w, planes_a, both>(
              w_of(first + s), a + s * kStepA, [&](size_t nth) __attribute__((always_inline)) {
                if (next) packer.pack(nth * Packer::kParts / kSmall, (nth + 1) * Packer::kParts / kSmall);
              });
        }
      if (kSmall > 0 && more) begin(first + count);
      for (size_t nth = 0; nth < count; ++nth) {
        const size_t s = step_of(nth, count, kSmall), next = first + s + 1;
        if constexpr (kSmall == 0) {
          asm volatile("" ::: "memory");
          if (next < all_steps) begin(next);
        }
        multiply_planes<planes_a, both>(w_of(first + s), a + s * kStepA, 0, 0, true, true);
        if (kSmall == 0 && next < all_steps) packer.pack(0, Packer::kParts);
        if (kSmall > 0 && more) packer.pack(nth * kShare, (nth + 1) * kShare);
      }
    }
    const size_t at = first * kStep, block_k = k - at < kBlock ? k - at : kBlock;
    add_block(part_of(p.a_rows, 0, p.a_rows.rows, at, block_k), part_of(p.w, 0, p.w.rows, at, block_k),
              packer.large() || reinterpret_cast<const Head*>(a_block)->large, first == 0, p.sums);
  }
}

// Calls f(Constant<0>{}), f(Constant<1>{}), ... `count` times.
template <size_t count, class F>
inline __attribute__((always_inline)) void repeat(F&& f) {
  if constexpr (count > 0) {
    repeat<count - 1>(f);
    f(Constant<count - 1>{});
  }
}

// The packed planes of one row over one block of k, as fp32.
template <size_t planes_a>
class RowPlanes {
 public:
  RowPlanes(const std::byte* packed, size_t count) {
    const __m512i upper = constant(0xffff0000u);
    for (size_t tile = 0; tile < count * planes_a; ++tile) {
      const __m512i bits = _mm512_loadu_si512(packed + tile * kTileBytes);
      _mm512_store_si512(values_[tile][0], _mm512_slli_epi32(bits, 16));
      _mm512_store_si512(values_[tile][1], _mm512_and_si512(bits, upper));
    }
  }
  // Element i of the 16 first ones, or of the 16 second ones, of a step; in every lane.
  inline __attribute__((always_inline)) __m512 spread(size_t step, size_t plane, bool second, size_t i) const {
    return _mm512_set1_ps(values_[step * planes_a + plane][second][i]);
  }

 private:
  alignas(64) float values_[kBlock / kStep * planes_a][2][kSide];
};

// Sums `count` steps of one block of k for one row of a as the tiles would: [halves, 16]. Returns whether an element of
// w may be kLarge or more.
template <class T, size_t planes_w, size_t planes_a>
bool sum_one(const FewProduct& p, size_t first, size_t count, const std::byte* a_tiles, float (&tile)[kHalves][kSide]) {
  constexpr size_t kSmall = small_products(planes_w, planes_a), kProducts = kSmall + 1;
  // The halves whose sums, two for each product, leave registers for the planes.
  constexpr size_t kTogether = kProducts > 4 ? 1 : kHalves;
  const DenormalsAreZeros mode;
  const RowPlanes<planes_a> a(a_tiles, count);
  alignas(64) float first_planes[kBlock / kStep][kHalves][kSide];
  __m512 sums[kHalves] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  __m512i bits = _mm512_setzero_si512();  // the OR of all elements' bits
  for (size_t s = 0; s < count; ++s) {
    const T* w = static_cast<const T*>(p.w.data) + (first + s) * kStep * kTileColumns;
    const std::byte* ahead = ahead_of(p, first + s);
    repeat<kHalves / kTogether>([&](auto group) __attribute__((always_inline)) {
      constexpr size_t kFirst = decltype(group)::kValue * kTogether;
      Pair products[kTogether][kProducts];
      for (auto& of_half : products)
        for (Pair& sum : of_half) sum = {_mm512_setzero_ps(), _mm512_setzero_ps()};
      for (size_t i = 0; i < kSide; ++i)
        repeat<kTogether>([&](auto nth_half) __attribute__((always_inline)) {
          constexpr size_t kNthHalf = decltype(nth_half)::kValue, kHalf = kFirst + kNthHalf;
          prefetch_part<T>(ahead, i * kHalves + kHalf);
          const Pair x = load_pair(w, i, kHalf);
          constexpr int kOr = 0xfe;
          bits = _mm512_ternarylogic_epi32(bits, _mm512_castps_si512(x.low), _mm512_castps_si512(x.high), kOr);
          Pair parts[planes_w];
          cut(x, parts);
          repeat<kProducts>([&](auto n) __attribute__((always_inline)) {
            constexpr size_t kNth = decltype(n)::kValue;
            constexpr Planes kThis = kNth < kSmall ? small_product<planes_w, planes_a>(kNth) : Planes{0, 0};
            Pair& sum = products[kNthHalf][kNth];
            sum.low = _mm512_fmadd_ps(parts[kThis.w].low, a.spread(s, kThis.a, false, i), sum.low);
            sum.high = _mm512_fmadd_ps(parts[kThis.w].high, a.spread(s, kThis.a, true, i), sum.high);
          });
        });
      repeat<kTogether>([&](auto nth_half) __attribute__((always_inline)) {
        constexpr size_t kNthHalf = decltype(nth_half)::kValue, kHalf = kFirst + kNthHalf;
        repeat<kSmall>([&](auto n) __attribute__((always_inline)) {
          const Pair& sum = products[kNthHalf][decltype(n)::kValue];
          sums[kHalf] = _mm512_add_ps(sums[kHalf], _mm512_add_ps(sum.low, sum.high));
        });
        const Pair& sum = products[kNthHalf][kSmall];
        _mm512_store_ps(first_planes[s][kHalf], _mm512_add_ps(sum.low, sum.high));
      });
    });
  }
  for (size_t nth = 0; nth < count; ++nth)
    for (size_t half = 0; half < kHalves; ++half)
      sums[half] = _mm512_add_ps(sums[half], _mm512_load_ps(first_planes[step_of(nth, count, kSmall)][half]));
  for (size_t half = 0; half < kHalves; ++half) _mm512_store_ps(tile[half], sums[half]);
  return Kinds(magnitude(_mm512_castsi512_ps(bits))).large != 0;
}

// multiply_few for one row of a, in vector registers.
template <class T, size_t planes_w, size_t planes_a>
void multiply_one(const FewProduct& p) {
  for (size_t at = 0; at < p.w.k; at += kBlock) {
    const size_t block_k = p.w.k - at < kBlock ? p.w.k - at : kBlock;
    const std::byte* a_block = p.a + at / kBlock * p.a_stride;
    alignas(64) float tile[kHalves][kSide];
    const RowsView a = part_of(p.a_rows, 0, 1, at, block_k), w = part_of(p.w, 0, p.w.rows, at, block_k);
    const bool large_w = sum_one<T, planes_w, planes_a>(p, at / kStep, steps(block_k), a_block + kHeadBytes, tile);
    for (size_t half = 0; half < kHalves; ++half)
      add_half(a, w, half, large_w || reinterpret_cast<const Head*>(a_block)->large, at == 0, tile[half], p.sums);
  }
}

void multiply_few(const FewProduct& p) {
  const bool one = p.a_rows.rows == 1;
  if (!one) configure_tiles(p.a_rows.rows);
  with_types(p.w.type, p.a_rows.type, p.a_rows.rows > kSide, [&](auto type, auto planes_w, auto planes_a, auto both) {
    using T = decltype(type);
    constexpr size_t kPlanesW = decltype(planes_w)::kValue, kPlanesA = decltype(planes_a)::kValue;
    if (one)
      multiply_one<T, kPlanesW, kPlanesA>(p);
    else
      multiply_few<T, kPlanesW, kPlanesA, decltype(both)::kValue != 0>(p);
  });
  if (!one) _tile_release();
}

// Turns rows [32, k] into a tile, as load_pair reads it; k is in whole steps.
void tile_w(const RowsView& rows, std::byte* tile) {
  const bool wide = rows.type == DType::kF32;
  const size_t taken = wide ? kSide : kStep, row_bytes = rows.stride * element_bytes(rows.type);
  const size_t lines = (wide ? 2 : 1) * kHalves;  // of the elements i and i + 16 of all columns
  for (size_t i = 0; i < rows.k; i += taken)
    for (size_t half = 0; half < kHalves; ++half) {
      const std::byte* from =
          static_cast<const std::byte*>(rows.data) + half * kSide * row_bytes + i * element_bytes(rows.type);
      __m512i block[kSide];
      for (size_t c = 0; c < kSide; ++c, from += row_bytes)
        block[c] = wide ? _mm512_loadu_si512(from) : load_in_pairs(reinterpret_cast<const Bf16*>(from), kStep);
      transpose(block);
      std::byte* target = tile + (i / kStep * kSide * lines + i % kStep / kSide * kHalves + half) * kRowBytes;
      for (size_t j = 0; j < kSide; ++j, target += lines * kRowBytes) _mm512_storeu_si512(target, block[j]);
    }
}

template <class T>
void row_of_tile(const RowsView& tile, size_t row, T* target) {
  const T* from = static_cast<const T*>(tile.data);
  const auto place = [&](size_t i) {
    const size_t pair = i / kStep * kSide + i % kSide, second = i % kStep / kSide;
    if constexpr (sizeof(T) == sizeof(float)) return (pair * 2 + second) * kTileColumns + row;
    return (pair * kTileColumns + row) * 2 + second;
  };
  for (size_t i = 0; i < tile.k; ++i) target[i] = from[place(i)];
}
void row_of_tile(const RowsView& tile, size_t row, std::byte* target) {
  if (tile.type == DType::kF32)
    row_of_tile(tile, row, reinterpret_cast<float*>(target));
  else
    row_of_tile(tile, row, reinterpret_cast<Bf16*>(target));
}

}  // namespace

constinit const MatmulKernel kMatmulAmx{
    .tile_rows = kHalves * kSide,
    .tile_columns = kHalves * kSide,
    .block_k = kBlock,
    .a_bytes = [](DType a, DType) { return packed_bytes(a); },
    .w_bytes = [](DType, DType w) { return packed_bytes(w); },
    .pack_a = [](const RowsView& a, DType, std::byte* packed) { pack_a(a, packed); },
    .pack_w = [](const RowsView& w, DType, std::byte* packed) { pack_w(w, packed); },
    .multiply = multiply,
    .multiply_few = multiply_few,
    .few_tiles = 0,
    .few_tiles_tiled = 3,
    .few_columns = [](size_t) -> size_t { return 1; },
    .has_tiles = [](DType) { return true; },
    .tile_w = tile_w,
    .row_of_tile = row_of_tile,
    .tile_is_packed = [](DType, DType) { return false; }};

}  // namespace lfm2
