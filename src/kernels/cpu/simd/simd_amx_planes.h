// For simd_amx.cpp: cuts numbers into bf16 planes, and packs them in the order in which the tiles read them.
//
// This file is compiled with flags that other processors cannot run: simd_body.h explains why everything here, and in
// simd_amx_tiles.h and simd_amx_sums.h, has internal linkage.
#pragma once

#include "kernels/cpu/simd/avx512_intrinsics.h"
#include "kernels/cpu/simd/simd.h"

namespace lfm2 {
namespace {

constexpr size_t kSide = 16;         // rows of a tile; also its columns of fp32
constexpr size_t kStep = 2 * kSide;  // elements of k in a tile of bf16
constexpr size_t kHalves = 2;        // tiles along each side of a register tile
constexpr size_t kBlock = 256;       // elements of k in a block
constexpr size_t kTileBytes = 1024;
constexpr size_t kRowBytes = 64;
constexpr size_t kHeadBytes = 64;    // a Head stands before each packed tile
constexpr unsigned kLarge = 0x4e80;  // 2^30 as bf16

constexpr size_t planes(DType type) {
  switch (type) {
    case DType::kF32:
      return 3;
    case DType::kF16:
      return 2;
    case DType::kBf16:
    case DType::kI32:
    case DType::kF8:
      return 1;
  }
  return 0;
}

// Stands before each packed tile of a or w.
struct Head {
  bool large;  // whether the tile holds a number of kLarge or more
};

size_t packed_bytes(DType type) { return kHeadBytes + kHalves * kBlock / kStep * planes(type) * kTileBytes; }

constexpr size_t steps(size_t k) { return (k + kStep - 1) / kStep; }

// size_bytes() of dtype.h would be compiled here with flags that other processors cannot run, and might be linked.
constexpr size_t element_bytes(DType type) { return type == DType::kF32 ? 4 : 2; }

constexpr size_t kTileColumns = kHalves * kSide;

// Loads 16 elements as fp32; reads only those that `mask` selects, the others are zero.
__m512 load(const float* x, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, x); }
__m512 load(const F16* x, __mmask16 mask) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, x)); }
__m512 load(const Bf16* x, __mmask16 mask) {
  const __m512i bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, x));
  return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}

__mmask16 mask_of(size_t count) { return static_cast<__mmask16>(count >= kSide ? 0xffffu : (1u << count) - 1); }

// The same 32 bits in each lane. The asm keeps the value in its register, where g++ would recompute it for each use.
inline __attribute__((always_inline)) __m512i constant(unsigned bits) {
  __m512i value = _mm512_set1_epi32(static_cast<int>(bits));
#ifdef __AVX512F__  // tests/support/fake_amx has no registers
  asm("" : "+v"(value));
#endif
  return value;
}

// While one of these lives, fp32 arithmetic treats numbers below 2^-126 as zeros, as tiles do. The compiler moves
// neither loads and stores nor what is computed between them across its beginning and end.
class DenormalsAreZeros {
 public:
  DenormalsAreZeros() {
    constexpr unsigned kInputs = 0x40, kResults = 0x8000;
    _mm_setcsr(before_ | kInputs | kResults);
    asm volatile("" ::: "memory");
  }
  ~DenormalsAreZeros() {
    asm volatile("" ::: "memory");
    _mm_setcsr(before_);
  }
  DenormalsAreZeros(const DenormalsAreZeros&) = delete;
  DenormalsAreZeros& operator=(const DenormalsAreZeros&) = delete;

 private:
  const unsigned before_ = _mm_getcsr();
};

// Elements i ... i + 15 of a step of k, and those that are 16 further; or elements i and i + 16 of 16 columns.
struct Pair {
  __m512 low, high;
};

// Cuts each number into parts of 8 significant bits, of which it is the sum; DenormalsAreZeros must live.
template <size_t count>
inline __attribute__((always_inline)) void cut(Pair x, Pair (&parts)[count]) {
  const __m512i upper = constant(0xffff0000u), half = constant(0x8000);
  const auto rounded = [&](__m512 value) __attribute__((always_inline)) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(value), half), upper));
  };
  for (size_t p = 0; p + 1 < count; ++p) {
    parts[p] = {rounded(x.low), rounded(x.high)};
    x = {_mm512_sub_ps(x.low, parts[p].low), _mm512_sub_ps(x.high, parts[p].high)};
  }
  parts[count - 1] = x;  // the last part is all that is left
}

// A plane holds numbers of 8 significant bits as bf16, those of `high` in the upper halves of the lanes.
inline __attribute__((always_inline)) __m512i join(Pair x) {
  constexpr int kSelect = 0xd8;  // the operation that takes b's bits where c has ones, else a's bits
  return _mm512_ternarylogic_epi32(_mm512_srli_epi32(_mm512_castps_si512(x.low), 16), _mm512_castps_si512(x.high),
                                   constant(0xffff0000u), kSelect);
}
template <size_t count>
inline __attribute__((always_inline)) void cut(Pair x, __m512i (&plane)[count]) {
  Pair parts[count];
  cut(x, parts);
  for (size_t p = 0; p < count; ++p) plane[p] = join(parts[p]);
}

// Loads the first 32 of the `left` elements of a row as planes.
template <size_t count, class T>
inline __attribute__((always_inline)) void load_planes(const T* row, size_t left, __m512i (&plane)[count]) {
  if (left >= kStep)
    cut({load(row, 0xffff), load(row + kSide, 0xffff)}, plane);
  else
    cut({load(row, mask_of(left)), load(row + kSide, mask_of(left > kSide ? left - kSide : 0))}, plane);
}

// Loads the first 32 of the `left` elements of a row of 16 bits each, i and i + 16 in one lane.
inline __attribute__((always_inline)) __m512i load_in_pairs(const Bf16* row, size_t left) {
  const auto mask = static_cast<__mmask32>(left >= kStep ? 0xffffffffu : (1u << left) - 1);
  const __m512i low = _mm512_cvtepu16_epi32(_mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  const __m512i order = _mm512_or_si512(low, _mm512_slli_epi32(_mm512_add_epi32(low, _mm512_set1_epi32(kSide)), 16));
  return _mm512_permutexvar_epi16(order, _mm512_maskz_loadu_epi16(mask, row));
}
// A bf16 number is its own only plane.
inline __attribute__((always_inline)) void load_planes(const Bf16* row, size_t left, __m512i (&plane)[1]) {
  plane[0] = load_in_pairs(row, left);
}

// A tile of weights (CpuOps::prepacked) has the columns side by side, as the instruction reads them, and elements i and
// i + 16 of a step of k next to each other. So a product reads it from end to end: the processor prefetches one stream
// in a page, not two. A step is [16, 2, columns] in fp32, [16, columns, 2] of 16 bits:
//   fp32:     element 0 of all columns, element 16 of all columns, element 1 of all columns, ...
//   16 bits:  elements 0, 16 of column 0, elements 0, 16 of column 1, ..., elements 1, 17 of column 0, ...

// load_pair: elements i and i + 16 of a step, of the 16 columns of one half of a tile.
inline __attribute__((always_inline)) Pair load_pair(const float* step, size_t i, size_t half) {
  const float* low = step + 2 * i * kTileColumns + half * kSide;
  return {_mm512_loadu_ps(low), _mm512_loadu_ps(low + kTileColumns)};
}
inline __attribute__((always_inline)) __m512i load_sixteen_bits(const void* step, size_t i, size_t half) {
  return _mm512_loadu_si512(static_cast<const std::byte*>(step) + (i * kHalves + half) * kRowBytes);
}
inline __attribute__((always_inline)) Pair load_pair(const Bf16* step, size_t i, size_t half) {
  const __m512i bits = load_sixteen_bits(step, i, half);
  return {_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)),
          _mm512_castsi512_ps(_mm512_and_si512(bits, constant(0xffff0000u)))};
}
inline __attribute__((always_inline)) Pair load_pair(const F16* step, size_t i, size_t half) {
  const __m512i bits = load_sixteen_bits(step, i, half);
  return {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(bits)),
          _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)))};
}

template <size_t count, class T>
inline __attribute__((always_inline)) void load_pair_planes(const T* step, size_t i, size_t half,
                                                            __m512i (&plane)[count]) {
  cut(load_pair(step, i, half), plane);
}
inline __attribute__((always_inline)) void load_pair_planes(const Bf16* step, size_t i, size_t half,
                                                            __m512i (&plane)[1]) {
  plane[0] = load_sixteen_bits(step, i, half);
}

// The largest magnitudes among the planes 0 that see() was given.
class Largest {
 public:
  inline __attribute__((always_inline)) void see(__m512i plane) {
    most_ = _mm512_max_epu16(most_, _mm512_and_si512(plane, magnitude_));
  }
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

// A number as a type, so that generic lambdas can take it as a constant.
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
    case DType::kF8:
      return;  // the operators refuse it
  }
}

// Calls f(T{}, planes of w, planes of a, whether a has two halves), where T is the type of w and the others are
// Constants.
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

// Calls f(T{}, step) for each step of a tiled view.
template <class T, class F>
inline __attribute__((always_inline)) void for_each_step(const RowsView& tile, F&& f) {
  const T* step = static_cast<const T*>(tile.data);
  for (size_t i = 0; i < tile.k; i += kStep, step += kStep * kTileColumns) f(step);
}

// Packs w as a Head and [steps, halves, planes, tile], where a tile is 16 pairs of elements by 16 columns.
void pack_w(const RowsView& w, std::byte* packed) {
  const DenormalsAreZeros mode;
  auto* head = reinterpret_cast<Head*>(packed);
  packed += kHeadBytes;
  with_type(w.type, [&](auto type, auto planes_constant) {
    using T = decltype(type);
    constexpr size_t kPlanes = decltype(planes_constant)::kValue;
    Largest largest;
    if (w.tiled)
      for_each_step<T>(w, [&](const T* step) {
        for (size_t half = 0; half < kHalves; ++half, packed += kPlanes * kTileBytes)
          for (size_t i = 0; i < kSide; ++i) {
            __m512i plane[kPlanes];
            load_pair_planes(step, i, half, plane);
            largest.see(plane[0]);
            for (size_t p = 0; p < kPlanes; ++p) _mm512_storeu_si512(packed + p * kTileBytes + i * kRowBytes, plane[p]);
          }
      });
    for (size_t i = 0; !w.tiled && i < w.k; i += kStep)
      for (size_t first = 0; first < kTileColumns; first += kSide, packed += kPlanes * kTileBytes) {
        __m512i tile[kPlanes][kSide];
        for (size_t c = 0; c < kSide; ++c) {
          __m512i plane[kPlanes] = {};
          if (first + c < w.rows) {
            load_planes(static_cast<const T*>(w.data) + (first + c) * w.stride + i, w.k - i, plane);
            largest.see(plane[0]);
          }
          for (size_t p = 0; p < kPlanes; ++p) tile[p][c] = plane[p];
        }
        for (size_t p = 0; p < kPlanes; ++p) {
          transpose(tile[p]);
          for (size_t c = 0; c < kSide; ++c) _mm512_storeu_si512(packed + p * kTileBytes + c * kRowBytes, tile[p][c]);
        }
      }
    head->large = largest.large();
  });
}

// Packs a as a Head and [steps, halves, planes, tile], where a tile is 16 rows of a by 32 elements. A half without rows
// is omitted.
void pack_a(const RowsView& a, std::byte* packed) {
  const DenormalsAreZeros mode;
  auto* head = reinterpret_cast<Head*>(packed);
  packed += kHeadBytes;
  with_type(a.type, [&](auto type, auto planes_constant) {
    using T = decltype(type);
    constexpr size_t kPlanes = decltype(planes_constant)::kValue;
    const size_t step_bytes = (a.rows > kSide ? kHalves : 1) * kPlanes * kTileBytes;
    Largest largest;
    for (size_t r = 0; r < (a.rows > kSide ? kHalves : 1) * kSide; ++r) {
      std::byte* target = packed + r / kSide * kPlanes * kTileBytes + r % kSide * kRowBytes;
      for (size_t i = 0; i < a.k; i += kStep, target += step_bytes) {
        __m512i plane[kPlanes] = {};
        if (r < a.rows) load_planes(static_cast<const T*>(a.data) + r * a.stride + i, a.k - i, plane);
        largest.see(plane[0]);
        for (size_t p = 0; p < kPlanes; ++p) _mm512_storeu_si512(target + p * kTileBytes, plane[p]);
      }
    }
    head->large = largest.large();
  });
}

}  // namespace
}  // namespace lfm2
