// The matrix product on AMX tiles: fp32 as a sum of bf16 planes, whose products are exact.
//
// A value is cut into planes of 8 significant bits: x = x0 + x1 + x2 exactly (bf16: x0 alone; fp16: x0 + x1), each
// plane what is left, rounded to bf16. a w is the sum of ai wj with i + j < 3: what is left out is below 2^-23 |a w|
// and of any sign. A block of k is summed 32 elements after 32, in pairs (i, i + 16): first all small products (i + j >
// 0), then those of the first planes, so that sums are rounded as seldom as can be where they are large. The products
// are exact, and the instruction rounds about once for its 32 elements.
//
// Tiles treat numbers below 2^-126 as zero, and an infinity has no planes. So a sum over a block of k is made by plain
// fused multiply-adds instead, as the vector kernels make it, where
//   - its row of a or of w holds a number of kLarge or more in the block, or
//   - the tiles' sum is below kLeast, infinite or a NaN.
// Elsewhere the tiles lose, in a block, less than 2^-85: of 256 elements 2^-126 a plane, times less than kLarge. That
// is 2^-6 units in the last place of kLeast. The choice depends on the row of a and the row of w alone, as the sum
// does.
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
constexpr size_t kHeadBytes = 64;    // before packed tiles: a Head
constexpr unsigned kLarge = 0x4e80;  // 2^30 as bf16
constexpr float kLeast = 0x1p-55f;   // of sums over a block
constexpr float kMost = 0x1p100f;    // sums of numbers below kLarge stay far below it

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

// What a packed tile of a or w begins with.
struct Head {
  bool large;  // a number of kLarge or more
};

size_t packed_bytes(DType type) { return kHeadBytes + kHalves * kBlock / kStep * planes(type) * kTileBytes; }

constexpr size_t steps(size_t k) { return (k + kStep - 1) / kStep; }

// 16 elements as fp32; only those that `mask` names are read, the others are zeros.
__m512 load(const float* x, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, x); }
__m512 load(const F16* x, __mmask16 mask) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, x)); }
__m512 load(const Bf16* x, __mmask16 mask) {
  const __m512i bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, x));
  return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}

__mmask16 mask_of(size_t count) { return static_cast<__mmask16>(count >= kSide ? 0xffffu : (1u << count) - 1); }

// The same 32 bits in each lane; stays in its register: g++ would make it anew for each use.
inline __attribute__((always_inline)) __m512i constant(unsigned bits) {
  __m512i value = _mm512_set1_epi32(static_cast<int>(bits));
  asm("" : "+v"(value));
  return value;
}

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
  const __m512i upper = constant(0xffff0000u), half = constant(0x8000);
  for (size_t p = 0; p < count; ++p) {
    __m512i low_bits = _mm512_castps_si512(low), high_bits = _mm512_castps_si512(high);
    if (p + 1 < count) {  // to the nearest; the last plane is exact
      low_bits = _mm512_and_si512(_mm512_add_epi32(low_bits, half), upper);
      high_bits = _mm512_and_si512(_mm512_add_epi32(high_bits, half), upper);
      low = _mm512_sub_ps(low, _mm512_castsi512_ps(low_bits));
      high = _mm512_sub_ps(high, _mm512_castsi512_ps(high_bits));
    }
    constexpr int kSelect = 0xd8;  // the bits of b where c has ones, else those of a
    plane[p] = _mm512_ternarylogic_epi32(_mm512_srli_epi32(low_bits, 16), high_bits, upper, kSelect);
  }
}

// bf16 is its own plane.
inline __attribute__((always_inline)) void load_planes(const Bf16* row, size_t left, __m512i (&plane)[1]) {
  const auto mask = static_cast<__mmask32>(left >= kStep ? 0xffffffffu : (1u << left) - 1);
  const __m512i low = _mm512_cvtepu16_epi32(_mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  const __m512i order = _mm512_or_si512(low, _mm512_slli_epi32(_mm512_add_epi32(low, _mm512_set1_epi32(kSide)), 16));
  plane[0] = _mm512_permutexvar_epi16(order, _mm512_maskz_loadu_epi16(mask, row));
}

// The largest magnitudes that went by, in planes 0.
class Largest {
 public:
  inline __attribute__((always_inline)) void see(__m512i plane) {
    most_ = _mm512_max_epu16(most_, _mm512_and_si512(plane, magnitude_));
  }
  void take(const Largest& other) { most_ = _mm512_max_epu16(most_, other.most_); }
  bool large() const { return _mm512_cmpge_epu16_mask(most_, _mm512_set1_epi16(kLarge)) != 0; }

 private:
  __m512i most_ = _mm512_setzero_si512();
  const __m512i magnitude_ = constant(0x7fff7fffu);
};

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

// A Head and [steps, halves, planes, tile], where a tile is 16 rows of w by 32 elements.
void pack_w(const RowsView& w, std::byte* packed) {
  auto* head = reinterpret_cast<Head*>(packed);
  packed += kHeadBytes;
  with_type(w.type, [&](auto type, auto planes_constant) {
    using T = decltype(type);
    constexpr size_t kPlanes = decltype(planes_constant)::kValue;
    Largest largest;
    for (size_t r = 0; r < kHalves * kSide; ++r) {
      std::byte* target = packed + r / kSide * kPlanes * kTileBytes + r % kSide * kRowBytes;
      const T* row = static_cast<const T*>(w.data) + r * w.stride;
      for (size_t i = 0; i < w.k; i += kStep, target += kHalves * kPlanes * kTileBytes) {
        __m512i plane[kPlanes] = {};
        if (r < w.rows) load_planes(row + i, w.k - i, plane);
        largest.see(plane[0]);
        for (size_t p = 0; p < kPlanes; ++p) _mm512_storeu_si512(target + p * kTileBytes, plane[p]);
      }
    }
    head->large = largest.large();
  });
}

// A Head and [steps, halves, planes, tile], where a tile is 16 pairs of elements by 16 rows of a. A half without rows
// is left out.
void pack_a(const RowsView& a, std::byte* packed) {
  auto* head = reinterpret_cast<Head*>(packed);
  packed += kHeadBytes;
  with_type(a.type, [&](auto type, auto planes_constant) {
    using T = decltype(type);
    constexpr size_t kPlanes = decltype(planes_constant)::kValue;
    Largest largest;
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
            largest.see(plane[0]);
          }
          for (size_t p = 0; p < kPlanes; ++p) tile[p][r] = plane[p];
        }
        for (size_t p = 0; p < kPlanes; ++p) {
          transpose(tile[p]);
          for (size_t r = 0; r < kSide; ++r) _mm512_storeu_si512(packed + p * kTileBytes + r * kRowBytes, tile[p][r]);
        }
      }
    head->large = largest.large();
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

// The registers: tiles 0 … 3 are sums, [half of w][half of a]; 4 and 5 the halves of w, 6 and 7 those of a.
inline __attribute__((always_inline)) void zero_tiles() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

// Products of planes for an element, but for the first planes'.
constexpr size_t small_products(size_t planes_w, size_t planes_a) {
  return planes_w * planes_a == 9 ? 5 : planes_w * planes_a == 6 ? 4 : planes_w * planes_a - 1;
}

// Adds the product of planes i of w and j of a over one step of k; w(i, half) is where a tile lies. A plane that the
// product before it had is still loaded.
template <size_t planes_a, bool both, class W>
inline __attribute__((always_inline)) void multiply_planes(W&& w, const std::byte* a, size_t i, size_t j, bool load_w,
                                                           bool load_a) {
  if (load_w) {
    _tile_loadd(4, w(i, 0), kRowBytes);
    _tile_loadd(5, w(i, 1), kRowBytes);
  }
  if (load_a) {
    _tile_loadd(6, a + j * kTileBytes, kRowBytes);
    if constexpr (both) _tile_loadd(7, a + (planes_a + j) * kTileBytes, kRowBytes);
  }
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (both) _tile_dpbf16ps(1, 4, 7);
  _tile_dpbf16ps(2, 5, 6);
  if constexpr (both) _tile_dpbf16ps(3, 5, 7);
}

// Adds the small products over one step of k; after each of them, between(its number).
template <size_t planes_w, size_t planes_a, bool both, class W, class F>
inline __attribute__((always_inline)) void multiply_small(W&& w, const std::byte* a, F&& between) {
  const auto multiply = [&](size_t i, size_t j, bool load_w, bool load_a, size_t nth) __attribute__((always_inline)) {
    multiply_planes<planes_a, both>(w, a, i, j, load_w, load_a);
    between(nth);
  };
  size_t nth = 0;  // neighbours in this order share a plane
  if constexpr (planes_a > 2) multiply(0, 2, true, true, nth++);
  if constexpr (planes_a > 1) multiply(0, 1, planes_a == 2, true, nth++);
  if constexpr (planes_w > 1 && planes_a > 1) multiply(1, 1, true, false, nth++);
  if constexpr (planes_w > 1) multiply(1, 0, planes_a == 1, true, nth++);
  if constexpr (planes_w > 2) multiply(2, 0, true, false, nth++);
}

// The order of the first planes' products: backwards, so that they find the last steps in the cache. Without small
// products nothing has been there before.
constexpr size_t step_of(size_t nth, size_t count, size_t small) { return small > 0 ? count - 1 - nth : nth; }

// The planes of w and a in the small product `nth` of a step, in the order of multiply_small.
struct Planes {
  size_t w, a;
};
template <size_t planes_w, size_t planes_a>
constexpr Planes small_product(size_t nth) {
  Planes all[small_products(planes_w, planes_a) + 1] = {};
  size_t count = 0;
  if (planes_a > 2) all[count++] = {0, 2};
  if (planes_a > 1) all[count++] = {0, 1};
  if (planes_w > 1 && planes_a > 1) all[count++] = {1, 1};
  if (planes_w > 1) all[count++] = {1, 0};
  if (planes_w > 2) all[count++] = {2, 0};
  return all[nth];
}

// Adds the product of the loaded planes, and loads those of the next one as soon as their registers are free.
template <size_t planes_w, size_t planes_a, bool both, bool load_w, bool load_a>
inline __attribute__((always_inline)) void multiply_loaded(const std::byte* w, const std::byte* a) {
  constexpr size_t kHalfW = planes_w * kTileBytes, kHalfA = planes_a * kTileBytes;
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (load_a) {
    _tile_dpbf16ps(2, 5, 6);
    _tile_loadd(6, a, kRowBytes);
    if constexpr (both) _tile_dpbf16ps(1, 4, 7);
    if constexpr (load_w) _tile_loadd(4, w, kRowBytes);
    if constexpr (both) _tile_dpbf16ps(3, 5, 7);
    if constexpr (both) _tile_loadd(7, a + kHalfA, kRowBytes);
    if constexpr (load_w) _tile_loadd(5, w + kHalfW, kRowBytes);
  } else {
    if constexpr (both) _tile_dpbf16ps(1, 4, 7);
    if constexpr (load_w) _tile_loadd(4, w, kRowBytes);
    _tile_dpbf16ps(2, 5, 6);
    if constexpr (both) _tile_dpbf16ps(3, 5, 7);
    if constexpr (load_w) _tile_loadd(5, w + kHalfW, kRowBytes);
  }
}

// The sums of one register tile over one block of k.
template <size_t planes_w, size_t planes_a, bool both>
void multiply_block(const std::byte* w, const std::byte* a, size_t count, Fetcher& w_lines, Fetcher& out_lines) {
  constexpr size_t kStepW = kHalves * planes_w * kTileBytes, kTilesA = (both ? 2 : 1) * planes_a;
  constexpr size_t kStepA = kTilesA * kTileBytes, kSmall = small_products(planes_w, planes_a);
  const auto fetch = [&]() __attribute__((always_inline)) {
    w_lines.next();
    out_lines.next();
    out_lines.next();
  };
  zero_tiles();
  if (count == 0) return;
  constexpr Planes kFirst = small_product<planes_w, planes_a>(0);  // the first planes where there are no small products
  _tile_loadd(4, w + kFirst.w * kTileBytes, kRowBytes);
  _tile_loadd(5, w + (planes_w + kFirst.w) * kTileBytes, kRowBytes);
  _tile_loadd(6, a + kFirst.a * kTileBytes, kRowBytes);
  if constexpr (both) _tile_loadd(7, a + (planes_a + kFirst.a) * kTileBytes, kRowBytes);
  constexpr size_t kLines =
      kSmall > 0 ? (kTilesA * kSide + kSmall - 1) / kSmall : 0;  // of a, that each product sees come
  for (size_t s = 0; kSmall > 0 && s < count; ++s) {
    const std::byte *w_step = w + s * kStepW, *a_step = a + s * kStepA;
    const auto product = [&]<size_t nth>(Constant<nth>) __attribute__((always_inline)) {
      if constexpr (nth < kSmall) {
        constexpr Planes kThis = small_product<planes_w, planes_a>(nth);
        if constexpr (nth + 1 < kSmall) {
          constexpr Planes kNext = small_product<planes_w, planes_a>(nth + 1);
          multiply_loaded<planes_w, planes_a, both, kThis.w != kNext.w, kThis.a != kNext.a>(
              w_step + kNext.w * kTileBytes, a_step + kNext.a * kTileBytes);
        } else {  // the next step's first, or the last step's first planes
          const bool more = s + 1 < count;
          multiply_loaded<planes_w, planes_a, both, true, true>(
              more ? w_step + kStepW + kFirst.w * kTileBytes : w_step,
              more ? a_step + kStepA + kFirst.a * kTileBytes : a_step);
        }
        if constexpr (planes_w > 1) prefetch_lines<kLines>(a_step + kStepA + nth * kLines * kRowBytes);
        fetch();
      }
    };
    product(Constant<0>{});
    product(Constant<1>{});
    product(Constant<2>{});
    product(Constant<3>{});
    product(Constant<4>{});
  }
  for (size_t nth = 0; nth < count; ++nth) {
    const size_t next = step_of(nth + 1 < count ? nth + 1 : nth, count, kSmall);
    multiply_loaded<planes_w, planes_a, both, true, true>(w + next * kStepW, a + next * kStepA);
    fetch();
  }
}

// f(T{}, planes of w, planes of a, whether there are two halves of a), all but T as constants; T is the type of w.
template <class F>
void with_types(DType w_type, DType a_type, bool both, F&& f) {
  with_type(w_type, [&](auto type, auto planes_w) {
    with_type(a_type, [&](auto, auto planes_a) {
      if (both)
        f(type, planes_w, planes_a, Constant<1>{});
      else
        f(type, planes_w, planes_a, Constant<0>{});
    });
  });
}

RowsView part_of(const RowsView& view, size_t first, size_t rows, size_t first_k, size_t k) {
  const size_t element = view.type == DType::kF32 ? 4 : 2;
  return {static_cast<const std::byte*>(view.data) + (first * view.stride + first_k) * element, view.type, view.stride,
          rows, k};
}

// The bits of the largest magnitude in each of at most 16 rows.
void largest_of_rows(const RowsView& view, unsigned (&largest)[kSide]) {
  with_type(view.type, [&](auto type, auto) {
    using T = decltype(type);
    for (size_t r = 0; r < view.rows; ++r) {
      const T* row = static_cast<const T*>(view.data) + r * view.stride;
      __m512i most = _mm512_setzero_si512();
      for (size_t i = 0; i < view.k; i += kSide) {
        const __m512i bits = _mm512_castps_si512(load(row + i, mask_of(view.k - i)));
        most = _mm512_max_epu32(most, _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)));
      }
      largest[r] = _mm512_reduce_max_epu32(most);
    }
  });
}

// Which of those rows are zeros throughout, and which hold a number that is kLarge or more when rounded to bf16.
struct Kinds {
  explicit Kinds(const RowsView& view) {
    unsigned largest[kSide];
    largest_of_rows(view, largest);
    for (size_t r = 0; r < view.rows; ++r) {
      if (largest[r] == 0) zeros |= 1u << r;
      if (largest[r] >= (kLarge << 16) - 0x8000u) large |= 1u << r;
    }
  }
  unsigned zeros = 0, large = 0;
};

// At most 16 rows as fp32, transposed: [k, 16].
void transpose_rows(const RowsView& view, float* target) {
  with_type(view.type, [&](auto type, auto) {
    using T = decltype(type);
    for (size_t i = 0; i < view.k; i += kSide) {
      const size_t count = view.k - i < kSide ? view.k - i : kSide;
      __m512i block[kSide];
      for (size_t r = 0; r < kSide; ++r)
        block[r] =
            r < view.rows
                ? _mm512_castps_si512(load(static_cast<const T*>(view.data) + r * view.stride + i, mask_of(count)))
                : _mm512_setzero_si512();
      transpose(block);
      for (size_t j = 0; j < count; ++j) _mm512_store_si512(target + (i + j) * kSide, block[j]);
    }
  });
}

// Whether a sum of the tile [columns, rows] may have to be made otherwise, of those that exist.
bool doubtful(const float* tile, size_t columns, size_t rows) {
  const __m512i least = _mm512_castps_si512(_mm512_set1_ps(kLeast)), magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i most = _mm512_setzero_si512();  // of bits counted from kLeast's: what is below it wraps
  for (size_t c = 0; c < columns; ++c) {
    const __m512i bits = _mm512_and_si512(_mm512_load_si512(tile + c * kSide), magnitude);
    most = _mm512_max_epu32(most, _mm512_sub_epi32(bits, least));
  }
  const __m512i range = _mm512_sub_epi32(_mm512_castps_si512(_mm512_set1_ps(kMost)), least);
  return _mm512_mask_cmpgt_epu32_mask(mask_of(rows), most, range) != 0;
}

// Makes the sums of one tile [columns, rows] that are not the tiles' (see the top) by plain multiply-adds, in order of
// k. Sums of zeros are left: tiles make them right.
__attribute__((noinline)) void make_plain(const RowsView& a, const RowsView& w, float* tile) {
  const Kinds a_kinds(a), w_kinds(w);
  const unsigned rows = mask_of(a.rows);
  __mmask16 wanted[kSide];
  unsigned any = 0;
  for (size_t c = 0; c < kSide; ++c) {
    wanted[c] = 0;
    if (c >= w.rows) continue;
    const __m512 magnitude = _mm512_abs_ps(_mm512_load_ps(tile + c * kSide));
    const unsigned least = _mm512_cmp_ps_mask(magnitude, _mm512_set1_ps(kLeast), _CMP_LT_OQ);
    const unsigned beyond = _mm512_cmp_ps_mask(magnitude, _mm512_set1_ps(kMost), _CMP_NLE_UQ);
    const bool zeros = (w_kinds.zeros >> c & 1u) != 0, large = (w_kinds.large >> c & 1u) != 0;
    const unsigned these = beyond | a_kinds.large | (large ? rows : 0) | (zeros ? 0 : least & ~a_kinds.zeros);
    wanted[c] = static_cast<__mmask16>(these & rows);
    any |= wanted[c];
  }
  if (any == 0) return;
  constexpr size_t kTogether = 8;  // columns, so that one's multiply-adds need not wait for each other
  alignas(64) float columns_of_a[kBlock * kSide], columns_of_w[kBlock * kSide];
  transpose_rows(a, columns_of_a);
  transpose_rows(w, columns_of_w);
  for (size_t first = 0; first < kSide; first += kTogether) {
    any = 0;
    for (size_t c = 0; c < kTogether; ++c) any |= wanted[first + c];
    if (any == 0) continue;
    __m512 sums[kTogether];
    for (size_t c = 0; c < kTogether; ++c) sums[c] = _mm512_setzero_ps();
    for (size_t i = 0; i < a.k; ++i) {
      const __m512 x = _mm512_load_ps(columns_of_a + i * kSide);
#pragma GCC unroll 8
      for (size_t c = 0; c < kTogether; ++c)
        sums[c] = _mm512_fmadd_ps(x, _mm512_set1_ps(columns_of_w[i * kSide + first + c]), sums[c]);
    }
    for (size_t c = 0; c < kTogether; ++c) _mm512_mask_store_ps(tile + (first + c) * kSide, wanted[first + c], sums[c]);
  }
}

// Adds a tile [columns, rows] to the sums, which keep that shape until the last block: then it becomes [rows, columns].
inline __attribute__((always_inline)) void add_tile(const float* tile, bool first, bool last, float* sums) {
  constexpr size_t kStride = kHalves * kSide;
  __m512i x[kSide];
  for (size_t c = 0; c < kSide; ++c) {
    __m512 sum = _mm512_load_ps(tile + c * kSide);
    if (!first) sum = _mm512_add_ps(_mm512_loadu_ps(sums + c * kStride), sum);
    x[c] = _mm512_castps_si512(sum);
  }
  if (last) transpose(x);
  for (size_t r = 0; r < kSide; ++r) _mm512_storeu_ps(sums + r * kStride, _mm512_castsi512_ps(x[r]));
}

// What the tiles summed over a block of k, put right and added to the sums of one register tile; a and w as they are
// stored, over the block.
void add_block(const RowsView& a, const RowsView& w, bool large, bool first, bool last, float* sums) {
  alignas(64) float tile[kHalves * kHalves][kSide * kSide];
  const bool both = a.rows > kSide;
  _tile_stored(0, tile[0], kRowBytes);
  if (both) _tile_stored(1, tile[1], kRowBytes);
  _tile_stored(2, tile[2], kRowBytes);
  if (both) _tile_stored(3, tile[3], kRowBytes);
  for (size_t half_a = 0; half_a < (both ? kHalves : 1); ++half_a)
    for (size_t half_w = 0; half_w < kHalves; ++half_w) {
      float* part = tile[half_w * kHalves + half_a];
      const size_t row = half_a * kSide, column = half_w * kSide;
      const size_t rows = a.rows - row < kSide ? a.rows - row : kSide;
      const size_t columns = w.rows <= column ? 0 : w.rows - column < kSide ? w.rows - column : kSide;
      if (columns > 0 && (large || doubtful(part, columns, rows)))
        make_plain(part_of(a, row, rows, 0, a.k), part_of(w, column, columns, 0, w.k), part);
      add_tile(part, first, last, sums + row * kHalves * kSide + column);
    }
}

struct alignas(64) TileConfig {
  unsigned char palette = 1, start_row = 0, reserved[14] = {};
  unsigned short row_bytes[16] = {};
  unsigned char rows[16] = {};
};

void configure_tiles() {
  TileConfig config;
  for (size_t tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = kRowBytes;
    config.rows[tile] = kSide;
  }
  asm volatile("" ::: "memory");  // what was packed and the configuration are in memory
  _tile_loadconfig(&config);
}

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
              p.k > 0 && (large_w || reinterpret_cast<const Head*>(a)->large), p.first, p.last,
              p.sums + tile * kRows * kRows);
  }
  _tile_release();
}

// Packs one step of the rows of w for multiply_few, some rows at a time: plane 0 as [tile_columns, 32 elements], and
// the others as [planes, tile_columns, 32 elements]. Behind the last row, that one again, for sums that nobody reads.
template <class T, size_t planes_w>
class StepPacker {
 public:
  explicit StepPacker(const FewProduct& p) : p_(p) {}

  // The step at i.
  void begin(size_t i, std::byte* first_plane, std::byte* others) {
    const size_t byte = i * sizeof(T), ahead = byte + kAhead, row_bytes = p_.w.k * sizeof(T);
    row_ = static_cast<const std::byte*>(p_.w.data) + byte;
    const std::byte* next_w = static_cast<const std::byte*>(p_.next_w);
    to_soon_ = (ahead < row_bytes ? row_ + kAhead : next_w + ahead - row_bytes) - row_;
    left_ = p_.w.k - i;
    first_plane_ = first_plane;
    others_ = others;
  }
  bool whole() const { return left_ >= kStep; }
  // The rows from `first` to before `end`, of a whole step.
  inline __attribute__((always_inline)) void pack(size_t first, size_t end) {
    for (size_t r = first; r < end; ++r) pack_row(r, kStep);
  }
  // All rows, of a step that need not be whole. By value: a packer whose address is known cannot stay in registers.
  __attribute__((noinline)) static Largest pack_all(StepPacker packer) {
    const size_t left = packer.left_ < kStep ? packer.left_ : kStep;
    for (size_t r = 0; r < kRows; ++r) packer.pack_row(r, left);
    return packer.largest_;
  }
  void pack_all() { largest_.take(pack_all(*this)); }
  bool large() const { return largest_.large(); }

 private:
  static constexpr size_t kRows = kHalves * kSide;
  static constexpr size_t kAhead = 1024;  // bytes of each row, which are asked for

  inline __attribute__((always_inline)) void pack_row(size_t r, size_t left) {
    __m512i plane[planes_w];
    load_planes(reinterpret_cast<const T*>(row_), left, plane);
    for (size_t byte = 0; byte < kStep * sizeof(T); byte += kRowBytes) __builtin_prefetch(row_ + to_soon_ + byte, 0, 2);
    largest_.see(plane[0]);
    _mm512_store_si512(first_plane_ + r * kRowBytes, plane[0]);
    for (size_t j = 1; j < planes_w; ++j) _mm512_store_si512(others_ + ((j - 1) * kRows + r) * kRowBytes, plane[j]);
    row_ += r + 1 < p_.w.rows ? p_.w.stride * sizeof(T) : 0;
  }

  const FewProduct p_;
  const std::byte* row_ = nullptr;
  std::ptrdiff_t to_soon_ = 0;
  size_t left_ = 0;
  std::byte *first_plane_ = nullptr, *others_ = nullptr;
  Largest largest_;  // so far: a larger one than the block's own only costs time
};

// One register tile over all of k, for few rows of a: the rows of w are packed step by step, in the time in which the
// tiles multiply what was packed before.
template <class T, size_t planes_w, size_t planes_a, bool both>
void multiply_few(const FewProduct& p) {
  constexpr size_t kStepA = (both ? 2 : 1) * planes_a * kTileBytes, kSmall = small_products(planes_w, planes_a);
  constexpr size_t kRows = kHalves * kSide, kPlane = kHalves * kTileBytes;
  constexpr size_t kShare = kRows * kStep / kBlock;  // of a step's rows, for each step of a block
  constexpr size_t kKept = kBlock / kStep + 1;  // the block's first planes, and those of the next block's first step
  alignas(64) std::byte first_planes[kKept][kPlane], others[2][planes_w > 1 ? (planes_w - 1) * kPlane : 1];
  StepPacker<T, planes_w> packer(p);
  const size_t k = p.w.k, all_steps = steps(k);
  const auto begin = [&](size_t step) {
    packer.begin(step * kStep, first_planes[step % kKept], others[step % 2]);
    if (!packer.whole()) packer.pack_all();
  };
  const auto w_of = [&](size_t step) __attribute__((always_inline)) {
    return [ first = first_planes[step % kKept], other = others[step % 2] ](size_t i, size_t half)
        __attribute__((always_inline)) {
      return (i == 0 ? first : other + (i - 1) * kPlane) + half * kTileBytes;
    };
  };
  packer.begin(0, first_planes[0], others[0]);
  packer.pack_all();
  for (size_t first = 0; first < all_steps; first += kBlock / kStep) {
    const size_t count = all_steps - first < kBlock / kStep ? all_steps - first : kBlock / kStep;
    const std::byte* a_block = p.a + first * kStep / kBlock * p.a_stride;
    const std::byte* a = a_block + kHeadBytes;
    zero_tiles();
    if constexpr (kSmall > 0)
      for (size_t s = 0; s < count; ++s) {
        asm volatile("" ::: "memory");  // what was packed is in memory
        const bool more = s + 1 < count;
        if (more) begin(first + s + 1);
        const size_t rows = more && packer.whole() ? kRows : 0;
        multiply_small<planes_w, planes_a, both>(
            w_of(first + s), a + s * kStepA, [&](size_t nth) __attribute__((always_inline)) {
              if (rows > 0) packer.pack(nth * kRows / kSmall, (nth + 1) * kRows / kSmall);
            });
      }
    const bool more = first + count < all_steps;
    if (kSmall > 0 && more) begin(first + count);
    for (size_t nth = 0; nth < count; ++nth) {
      const size_t s = step_of(nth, count, kSmall), next = first + s + 1;
      if constexpr (kSmall == 0) {
        asm volatile("" ::: "memory");
        if (next < all_steps) begin(next);
      }
      multiply_planes<planes_a, both>(w_of(first + s), a + s * kStepA, 0, 0, true, true);
      if (kSmall == 0 && next < all_steps && packer.whole()) packer.pack(0, kRows);
      if (kSmall > 0 && more && packer.whole()) packer.pack(nth * kShare, (nth + 1) * kShare);
    }
    const size_t at = first * kStep, block_k = k - at < kBlock ? k - at : kBlock;
    add_block(part_of(p.a_rows, 0, p.a_rows.rows, at, block_k), part_of(p.w, 0, p.w.rows, at, block_k),
              packer.large() || reinterpret_cast<const Head*>(a_block)->large, first == 0, !more, p.sums);
  }
}

void multiply_few(const FewProduct& p) {
  configure_tiles();
  with_types(p.w.type, p.a_rows.type, p.a_rows.rows > kSide, [&](auto type, auto planes_w, auto planes_a, auto both) {
    multiply_few<decltype(type), decltype(planes_w)::kValue, decltype(planes_a)::kValue, decltype(both)::kValue != 0>(
        p);
  });
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
                                        .multiply = multiply,
                                        .multiply_few = multiply_few};

}  // namespace lfm2
