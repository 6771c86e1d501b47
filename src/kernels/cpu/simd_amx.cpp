// The matrix product on AMX tiles: fp32 as a sum of bf16 planes, whose products are exact.
//
// A value is cut into planes of 8 significant bits: x = x0 + x1 + x2 exactly (bf16: x0 alone; fp16: x0 + x1), each
// plane what is left, rounded to bf16. a w is the sum of ai wj with i + j < 3: what is left out is below 2^-23 |a w|
// and of any sign. A block of k is summed 32 elements after 32, in pairs (i, i + 16); of each 32, the small products (i
// + j > 0) first. Errors against fp64 are a third to two thirds of plain fp32's (MatmulTest.IsAsAccurateAsBlas): the
// products are exact, and the instruction rounds once for two of them. Tiles treat numbers below 2^-126 as zero, so the
// planes of numbers below 2^-110 lose bits; an infinity, or a number that rounds to one in bf16, gives infinities or
// NaNs in its row.
//
// The instruction takes rows of w as they lie (16 rows, 32 elements), and a as [pairs of elements, rows]; the tile of
// sums it makes is [columns, rows], which the last block turns round.
#if defined(__GNUC__) && \
    !defined(__clang__)  // g++ 12's header: _mm512_undefined_ps() warns about itself wherever it is inlined
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include "kernels/cpu/simd.h"

namespace lfm2 {
namespace {

constexpr size_t kSide = 16;         // rows of a tile; also its columns of fp32
constexpr size_t kStep = 2 * kSide;  // elements of k in a tile of bf16
constexpr size_t kHalves = 2;        // tiles along each side of a register tile
constexpr size_t kBlock = 256;       // of k
constexpr size_t kTileBytes = 1024;
constexpr size_t kRowBytes = 64;

constexpr size_t planes(DType type) {
  switch (type) {
    case DType::kF32:
      return 3;
    case DType::kF16:
      return 2;
    case DType::kBf16:
    case DType::kI32:
      return 1;
  }
  return 0;
}

size_t packed_bytes(DType type) { return kHalves * kBlock / kStep * planes(type) * kTileBytes; }

constexpr size_t steps(size_t k) { return (k + kStep - 1) / kStep; }

// 16 elements as fp32; only those that `mask` names are read, the others are zeros.
__m512 load(const float* x, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, x); }
__m512 load(const F16* x, __mmask16 mask) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, x)); }
__m512 load(const Bf16* x, __mmask16 mask) {
  const __m512i bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, x));
  return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}

__mmask16 mask_of(size_t count) { return static_cast<__mmask16>(count >= kSide ? 0xffffu : (1u << count) - 1); }

// The first 32 of the `left` elements of a row as planes: element i in the low half of lane i, element i + 16 in the
// high half.
template <size_t count, class T>
inline __attribute__((always_inline)) void load_planes(const T* row, size_t left, __m512i (&plane)[count]) {
  __m512 low, high;
  if (left >= kStep) {
    low = load(row, 0xffff);
    high = load(row + kSide, 0xffff);
  } else {
    low = load(row, mask_of(left));
    high = load(row + kSide, mask_of(left > kSide ? left - kSide : 0));
  }
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u)), half = _mm512_set1_epi32(0x8000);
  for (size_t p = 0; p < count; ++p) {
    __m512i low_bits = _mm512_castps_si512(low), high_bits = _mm512_castps_si512(high);
    if (p + 1 < count) {  // to the nearest; the last plane is exact
      low_bits = _mm512_and_si512(_mm512_add_epi32(low_bits, half), upper);
      high_bits = _mm512_and_si512(_mm512_add_epi32(high_bits, half), upper);
      low = _mm512_sub_ps(low, _mm512_castsi512_ps(low_bits));
      high = _mm512_sub_ps(high, _mm512_castsi512_ps(high_bits));
    }
    constexpr int kSelect = 0xca;  // the bits of b where a has ones, else those of c
    plane[p] = _mm512_ternarylogic_epi32(upper, high_bits, _mm512_srli_epi32(low_bits, 16), kSelect);
  }
}

inline __attribute__((always_inline)) void transpose(__m512i (&x)[kSide]) {
  __m512i two[kSide], four[kSide];
  for (size_t i = 0; i < kSide; i += 2) {
    two[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    two[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
  for (size_t i = 0; i < kSide; i += 4)
    for (size_t j = 0; j < 2; ++j) {
      four[i + 2 * j] = _mm512_unpacklo_epi64(two[i + j], two[i + j + 2]);
      four[i + 2 * j + 1] = _mm512_unpackhi_epi64(two[i + j], two[i + j + 2]);
    }
  for (size_t j = 0; j < 4; ++j) {
    const __m512i a = _mm512_shuffle_i32x4(four[j], four[j + 4], 0x88);
    const __m512i b = _mm512_shuffle_i32x4(four[j + 8], four[j + 12], 0x88);
    const __m512i c = _mm512_shuffle_i32x4(four[j], four[j + 4], 0xdd);
    const __m512i d = _mm512_shuffle_i32x4(four[j + 8], four[j + 12], 0xdd);
    x[j] = _mm512_shuffle_i32x4(a, b, 0x88);
    x[j + 4] = _mm512_shuffle_i32x4(c, d, 0x88);
    x[j + 8] = _mm512_shuffle_i32x4(a, b, 0xdd);
    x[j + 12] = _mm512_shuffle_i32x4(c, d, 0xdd);
  }
}

// f(T{}, number of planes as a constant) for the stored type.
template <size_t value>
struct Constant {
  static constexpr size_t kValue = value;
};
template <class F>
void with_type(DType type, F&& f) {
  switch (type) {
    case DType::kF32:
      return f(float{}, Constant<3>{});
    case DType::kBf16:
      return f(Bf16{}, Constant<1>{});
    case DType::kF16:
      return f(F16{}, Constant<2>{});
    case DType::kI32:
      return;  // refused by the operators
  }
}

// [steps, halves, planes, tile], where a tile is 16 rows of w by 32 elements.
void pack_w(const RowsView& w, std::byte* packed) {
  with_type(w.type, [&](auto type, auto planes_constant) {
    using T = decltype(type);
    constexpr size_t kPlanes = decltype(planes_constant)::kValue;
    for (size_t r = 0; r < kHalves * kSide; ++r) {
      std::byte* target = packed + r / kSide * kPlanes * kTileBytes + r % kSide * kRowBytes;
      const T* row = static_cast<const T*>(w.data) + r * w.stride;
      for (size_t i = 0; i < w.k; i += kStep, target += kHalves * kPlanes * kTileBytes) {
        __m512i plane[kPlanes] = {};
        if (r < w.rows) load_planes(row + i, w.k - i, plane);
        for (size_t p = 0; p < kPlanes; ++p) _mm512_storeu_si512(target + p * kTileBytes, plane[p]);
      }
    }
  });
}

// [steps, halves, planes, tile], where a tile is 16 pairs of elements by 16 rows of a. A half without rows is left out.
void pack_a(const RowsView& a, std::byte* packed) {
  with_type(a.type, [&](auto type, auto planes_constant) {
    using T = decltype(type);
    constexpr size_t kPlanes = decltype(planes_constant)::kValue;
    for (size_t i = 0; i < a.k; i += kStep)
      for (size_t first = 0; first < a.rows; first += kSide, packed += kPlanes * kTileBytes) {
        const size_t rows = a.rows - first < kSide ? a.rows - first : kSide;
        __m512i tile[kPlanes][kSide];
        for (size_t r = 0; r < kSide; ++r) {
          __m512i plane[kPlanes] = {};
          if (r < rows) {
            const T* row = static_cast<const T*>(a.data) + (first + r) * a.stride + i;
            __builtin_prefetch(row + 2 * kStep);
            load_planes(row, a.k - i, plane);
          }
          for (size_t p = 0; p < kPlanes; ++p) tile[p][r] = plane[p];
        }
        for (size_t p = 0; p < kPlanes; ++p) {
          transpose(tile[p]);
          for (size_t r = 0; r < kSide; ++r) _mm512_storeu_si512(packed + p * kTileBytes + r * kRowBytes, tile[p][r]);
        }
      }
  });
}

// Asks for the lines of every parts-th row from row `part` on, one a call: more at once would hold up the tiles.
class Fetcher {
 public:
  Fetcher(const Fetch& fetch, size_t part, size_t parts) : fetch_(fetch), row_(part), parts_(parts) {}
  inline __attribute__((always_inline)) void next() {
    if (row_ >= fetch_.rows) return;
    const std::byte* line = fetch_.from + row_ * fetch_.stride + byte_;
    if (fetch_.to_write)
      __builtin_prefetch(line, 1, 2);
    else
      __builtin_prefetch(line, 0, 2);
    byte_ += kRowBytes;
    if (byte_ < fetch_.row_bytes) return;
    byte_ = 0;
    row_ += parts_;
  }

 private:
  const Fetch fetch_;
  size_t row_, parts_, byte_ = 0;
};

// The rows of a that come next, from the L2 to the L1 cache; asking for what lies behind the last is harmless.
template <size_t lines>
inline __attribute__((always_inline)) void prefetch_lines(const std::byte* from) {
#pragma GCC unroll 64
  for (size_t line = 0; line < lines; ++line) __builtin_prefetch(from + line * kRowBytes, 0, 3);
}

// The sums of one register tile over one block of k. The registers: tiles 0 … 3 are sums, [half of w][half of a]; 4 and
// 5 the halves of w, 6 and 7 those of a.
template <size_t planes_w, size_t planes_a, bool both>
void multiply_block(const std::byte* w, const std::byte* a, size_t count, Fetcher& w_lines, Fetcher& out_lines) {
  constexpr size_t kStepW = kHalves * planes_w * kTileBytes, kStepA = (both ? 2 : 1) * planes_a * kTileBytes;
  // Products of planes, and the lines of a that one of them sees come.
  constexpr size_t kProducts = planes_w * planes_a == 9 ? 6 : planes_w * planes_a == 6 ? 5 : planes_w * planes_a;
  constexpr size_t kLines = (both ? 2 : 1) * planes_a * kSide / kProducts;
  // The product of planes i of w and j of a; a plane that the one before it had is still loaded.
  const auto step = [&](const std::byte* ws, const std::byte* as, size_t i, size_t j, bool load_w, bool load_a,
                        size_t nth) __attribute__((always_inline)) {
    if (load_w) {
      _tile_loadd(4, ws + i * kTileBytes, kRowBytes);
      _tile_loadd(5, ws + (planes_w + i) * kTileBytes, kRowBytes);
    }
    if (load_a) {
      _tile_loadd(6, as + j * kTileBytes, kRowBytes);
      if constexpr (both) _tile_loadd(7, as + (planes_a + j) * kTileBytes, kRowBytes);
    }
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (both) _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    if constexpr (both) _tile_dpbf16ps(3, 5, 7);
    prefetch_lines<kLines>(as + kStepA + nth * kLines * kRowBytes);
    w_lines.next();
    out_lines.next();
    out_lines.next();
  };
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (size_t s = 0; s < count; ++s, w += kStepW, a += kStepA) {  // neighbours in this order share a plane
    size_t nth = 0;
    if constexpr (planes_a > 2) step(w, a, 0, 2, true, true, nth++);
    if constexpr (planes_a > 1) step(w, a, 0, 1, planes_a == 2, true, nth++);
    if constexpr (planes_w > 1 && planes_a > 1) step(w, a, 1, 1, true, false, nth++);
    if constexpr (planes_w > 1) step(w, a, 1, 0, planes_a == 1, true, nth++);
    if constexpr (planes_w > 2) step(w, a, 2, 0, true, false, nth++);
    step(w, a, 0, 0, true, planes_w == 1, nth);
  }
}

template <size_t planes_w, size_t planes_a>
void multiply_block(const std::byte* w, const std::byte* a, size_t count, bool both, Fetcher& w_lines,
                    Fetcher& out_lines) {
  if (both)
    multiply_block<planes_w, planes_a, true>(w, a, count, w_lines, out_lines);
  else
    multiply_block<planes_w, planes_a, false>(w, a, count, w_lines, out_lines);
}

void multiply_block(const PackedProduct& p, const std::byte* a, bool both, Fetcher& w_lines, Fetcher& out_lines) {
  const size_t count = steps(p.k);
  with_type(p.w_type, [&](auto, auto planes_w) {
    with_type(p.a_type, [&](auto, auto planes_a) {
      multiply_block<decltype(planes_w)::kValue, decltype(planes_a)::kValue>(p.w, a, count, both, w_lines, out_lines);
    });
  });
}

// Adds a tile [columns, rows] to the sums, which keep that shape until the last block: then it becomes [rows, columns].
inline __attribute__((always_inline)) void add_tile(const float* tile, const PackedProduct& p, float* sums) {
  constexpr size_t kStride = kHalves * kSide;
  __m512i x[kSide];
  for (size_t c = 0; c < kSide; ++c) {
    __m512 sum = _mm512_load_ps(tile + c * kSide);
    if (!p.first) sum = _mm512_add_ps(_mm512_loadu_ps(sums + c * kStride), sum);
    x[c] = _mm512_castps_si512(sum);
  }
  if (p.last) transpose(x);
  for (size_t r = 0; r < kSide; ++r) _mm512_storeu_ps(sums + r * kStride, _mm512_castsi512_ps(x[r]));
}

struct alignas(64) TileConfig {
  unsigned char palette = 1, start_row = 0, reserved[14] = {};
  unsigned short row_bytes[16] = {};
  unsigned char rows[16] = {};
};

void multiply(const PackedProduct& p) {
  TileConfig config;
  for (size_t tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = kRowBytes;
    config.rows[tile] = kSide;
  }
  asm volatile("" ::: "memory");  // what was packed and the configuration are in memory
  _tile_loadconfig(&config);
  constexpr size_t kRows = kHalves * kSide;
  const size_t tiles = (p.rows + kRows - 1) / kRows, tile_bytes = packed_bytes(p.a_type);
  alignas(64) float results[4][kSide * kSide];
  for (size_t tile = 0; tile < tiles; ++tile) {
    Fetcher w_lines(p.next_w, tile, tiles), out_lines(p.out, tile, tiles);
    const bool both = p.rows - tile * kRows > kSide;
    const std::byte* a = p.a + tile * tile_bytes;
    multiply_block(p, a, both, w_lines, out_lines);
    float* sums = p.sums + tile * kRows * kRows;
    _tile_stored(0, results[0], kRowBytes);
    if (both) _tile_stored(1, results[1], kRowBytes);
    _tile_stored(2, results[2], kRowBytes);
    if (both) _tile_stored(3, results[3], kRowBytes);
    add_tile(results[0], p, sums);
    add_tile(results[2], p, sums + kSide);
    if (!both) continue;
    add_tile(results[1], p, sums + kSide * kRows);
    add_tile(results[3], p, sums + kSide * kRows + kSide);
  }
  _tile_release();
}

}  // namespace

constinit const MatmulKernel kMatmulAmx{.tile_rows = kHalves * kSide,
                                        .tile_columns = kHalves * kSide,
                                        .block_k = kBlock,
                                        .a_bytes = packed_bytes,
                                        .w_bytes = packed_bytes,
                                        .pack_a = pack_a,
                                        .pack_w = pack_w,
                                        .multiply = multiply};

}  // namespace lfm2
