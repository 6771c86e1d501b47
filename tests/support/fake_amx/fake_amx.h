// The instructions that simd_amx.cpp uses, in plain C++: included before it, they take the place of the compiler's
// functions. So the kernel is tested on processors that have neither AVX-512 nor AMX, also under the sanitizers.
//
// Tiles do what Intel's manual says of TDPBF16PS, which a processor with AMX was seen to do for 3 072 000 sums, bit by
// bit (docs/performance.md). What the manual calls an error ends the program: a tile that is not configured, another
// number of rows, an address that an aligned load or store may not have.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

namespace fake_amx {

inline void require(bool right) {
  if (!right) std::abort();
}

struct alignas(64) Vec {
  union {
    uint32_t u[16];
    float f[16];
    uint16_t h[32];
    uint64_t q[8];
  };
};
struct Half {  // 256 bits
  uint16_t h[16];
};
using Mask16 = uint16_t;
using Mask32 = uint32_t;

// A vector of the elements x(i), in the member `lanes`.
template <class Lanes, class F>
inline Vec fill(Lanes Vec::*lanes, F&& x) {
  Vec result;
  size_t i = 0;
  for (auto& lane : result.*lanes) lane = static_cast<std::remove_reference_t<decltype(lane)>>(x(i++));
  return result;
}
template <class F>
inline Vec words(F&& x) {
  return fill(&Vec::u, x);
}
template <class F>
inline Vec floats(F&& x) {
  return fill(&Vec::f, x);
}
template <class F>
inline Vec shorts(F&& x) {
  return fill(&Vec::h, x);
}
// Bit i is x(i), for `count` lanes.
template <class Mask, size_t count, class F>
inline Mask mask(F&& x) {
  Mask result = 0;
  for (size_t i = 0; i < count; ++i) result = static_cast<Mask>(result | static_cast<Mask>(x(i) ? Mask{1} << i : 0));
  return result;
}

// ---- memory

inline Vec load(const void* from) {
  Vec result;
  std::memcpy(&result, from, sizeof result);
  return result;
}
inline void store(void* to, const Vec& x) { std::memcpy(to, &x, sizeof x); }
inline Vec load_aligned(const void* from) {
  require(reinterpret_cast<uintptr_t>(from) % sizeof(Vec) == 0);
  return load(from);
}
inline void store_aligned(void* to, const Vec& x) {
  require(reinterpret_cast<uintptr_t>(to) % sizeof(Vec) == 0);
  store(to, x);
}
// Lanes whose bit is not set are neither read nor written.
template <class Lane, class Mask, size_t count>
inline void copy_some(void* to, const void* from, Mask chosen, Lane (&)[count]) {
  for (size_t i = 0; i < count; ++i)
    if ((chosen >> i & 1) != 0)
      std::memcpy(static_cast<Lane*>(to) + i, static_cast<const Lane*>(from) + i, sizeof(Lane));
}
inline Vec zero() {
  return words([](size_t) { return 0; });
}
inline Vec load_words(Mask16 chosen, const void* from) {
  Vec result = zero();
  copy_some(&result, from, chosen, result.u);
  return result;
}
inline Vec load_shorts(Mask32 chosen, const void* from) {
  Vec result = zero();
  copy_some(&result, from, chosen, result.h);
  return result;
}
inline Half load_half(Mask16 chosen, const void* from) {
  Half result{};
  copy_some(&result, from, chosen, result.h);
  return result;
}
inline void store_words(void* to, Mask16 chosen, const Vec& x) {
  require(reinterpret_cast<uintptr_t>(to) % sizeof(Vec) == 0);
  Vec lanes;
  copy_some(to, &x, chosen, lanes.u);
}

// ---- one lane at a time

inline Vec same(const Vec& x) { return x; }
inline Vec set_float(float x) {
  return floats([&](size_t) { return x; });
}
inline Vec set_word(int x) {
  return words([&](size_t) { return x; });
}
inline Vec set_short(short x) {
  return shorts([&](size_t) { return x; });
}
inline Vec add_words(const Vec& a, const Vec& b) {
  return words([&](size_t i) { return a.u[i] + b.u[i]; });
}
inline Vec subtract_words(const Vec& a, const Vec& b) {
  return words([&](size_t i) { return a.u[i] - b.u[i]; });
}
inline Vec both(const Vec& a, const Vec& b) {
  return words([&](size_t i) { return a.u[i] & b.u[i]; });
}
inline Vec either(const Vec& a, const Vec& b) {
  return words([&](size_t i) { return a.u[i] | b.u[i]; });
}
inline Vec shift_left(const Vec& a, unsigned bits) {
  return words([&](size_t i) { return a.u[i] << bits; });
}
inline Vec shift_right(const Vec& a, unsigned bits) {
  return words([&](size_t i) { return a.u[i] >> bits; });
}
inline Vec max_words(const Vec& a, const Vec& b) {
  return words([&](size_t i) { return a.u[i] > b.u[i] ? a.u[i] : b.u[i]; });
}
inline Vec max_shorts(const Vec& a, const Vec& b) {
  return shorts([&](size_t i) { return a.h[i] > b.h[i] ? a.h[i] : b.h[i]; });
}
inline Vec add(const Vec& a, const Vec& b) {
  return floats([&](size_t i) { return a.f[i] + b.f[i]; });
}
inline Vec subtract(const Vec& a, const Vec& b) {
  return floats([&](size_t i) { return a.f[i] - b.f[i]; });
}
inline Vec multiply_add(const Vec& a, const Vec& b, const Vec& c) {
  return floats([&](size_t i) { return __builtin_fmaf(a.f[i], b.f[i], c.f[i]); });
}
inline Vec absolute(const Vec& a) {
  return words([&](size_t i) { return a.u[i] & 0x7fffffffu; });
}
// Bit 4 a + 2 b + c of `table`, for each bit.
inline Vec ternary(const Vec& a, const Vec& b, const Vec& c, unsigned table) {
  return words([&](size_t i) {
    uint32_t result = 0;
    for (unsigned row = 0; row < 8; ++row)
      if ((table >> row & 1) != 0)
        result |= ((row & 4) != 0 ? a.u[i] : ~a.u[i]) & ((row & 2) != 0 ? b.u[i] : ~b.u[i]) &
                  ((row & 1) != 0 ? c.u[i] : ~c.u[i]);
    return result;
  });
}
template <int kind>
inline Mask16 compare(const Vec& a, const Vec& b) {
  static_assert(kind == _CMP_LT_OQ || kind == _CMP_NLE_UQ);
  return mask<Mask16, 16>([&](size_t i) { return kind == _CMP_LT_OQ ? a.f[i] < b.f[i] : !(a.f[i] <= b.f[i]); });
}
inline Mask32 shorts_at_least(const Vec& a, const Vec& b) {
  return mask<Mask32, 32>([&](size_t i) { return a.h[i] >= b.h[i]; });
}
inline Mask16 words_at_least(const Vec& a, const Vec& b) {
  return mask<Mask16, 16>([&](size_t i) { return a.u[i] >= b.u[i]; });
}
inline Mask16 words_above(Mask16 chosen, const Vec& a, const Vec& b) {
  return mask<Mask16, 16>([&](size_t i) { return (chosen >> i & 1) != 0 && a.u[i] > b.u[i]; });
}
inline Mask16 nothing_in_common(const Vec& a, const Vec& b) {
  return mask<Mask16, 16>([&](size_t i) { return (a.u[i] & b.u[i]) == 0; });
}
inline uint32_t largest_word(const Vec& a) {
  uint32_t result = 0;
  for (const uint32_t x : a.u) result = x > result ? x : result;
  return result;
}

// ---- from one width to another, and between lanes

template <class... T>
inline Half set_half(T... x) {
  return Half{{static_cast<uint16_t>(x)...}};
}
inline Vec widen(const Half& x) {
  return words([&](size_t i) { return x.h[i]; });
}
inline Vec widen_f16(const Half& x) {
  return floats([&](size_t i) { return _cvtsh_ss(x.h[i]); });
}
inline Half narrow(const Vec& x) {
  Half result;
  for (size_t i = 0; i < 16; ++i) result.h[i] = static_cast<uint16_t>(x.u[i]);
  return result;
}
inline Vec permute_shorts(const Vec& order, const Vec& x) {
  return shorts([&](size_t i) { return x.h[order.h[i] % 32]; });
}
// Quarters of 128 bits: two of a, two of b, each named by two bits.
inline Vec shuffle_quarters(const Vec& a, const Vec& b, unsigned which) {
  return words([&](size_t i) { return (i < 8 ? a : b).u[(which >> i / 4 * 2 & 3) * 4 + i % 4]; });
}
// In each quarter, elements of a and of b in turn: those of its lower or its upper half.
inline Vec interleave_words(const Vec& a, const Vec& b, size_t upper) {
  return words([&](size_t i) { return (i % 2 == 0 ? a : b).u[i / 4 * 4 + upper * 2 + i % 4 / 2]; });
}
inline Vec interleave_pairs(const Vec& a, const Vec& b, size_t upper) {
  return fill(&Vec::q, [&](size_t i) { return (i % 2 == 0 ? a : b).q[i / 2 * 2 + upper]; });
}

// ---- tiles

class Tiles {
 public:
  static constexpr size_t kTiles = 8, kRows = 16, kRowBytes = 64;

  void configure(const void* from) {
    const auto* bytes = static_cast<const unsigned char*>(from);
    require(bytes[0] == 1);  // the palette
    for (size_t t = 0; t < kTiles; ++t) {
      std::memcpy(&row_bytes_[t], bytes + 16 + 2 * t, 2);
      rows_[t] = bytes[48 + t];
      require(row_bytes_[t] <= kRowBytes && rows_[t] <= kRows);
      std::memset(data_[t], 0, sizeof data_[t]);
    }
  }
  void release() { std::memset(rows_, 0, sizeof rows_); }
  void clear(size_t t) {
    require(rows_[t] > 0);
    std::memset(data_[t], 0, sizeof data_[t]);
  }
  void load(size_t t, const void* from, size_t stride) {
    clear(t);
    for (size_t r = 0; r < rows_[t]; ++r)
      std::memcpy(data_[t][r], static_cast<const char*>(from) + r * stride, row_bytes_[t]);
  }
  void store(size_t t, void* to, size_t stride) const {
    require(rows_[t] > 0);
    for (size_t r = 0; r < rows_[t]; ++r) std::memcpy(static_cast<char*>(to) + r * stride, data_[t][r], row_bytes_[t]);
  }
  // Adds to `sums` [rows, 16] the products of a [rows, 16 pairs] and b [16 pairs, 16 columns]: subnormal numbers are
  // zeros, and it rounds to the nearest, whatever the thread does.
  __attribute__((noinline)) void multiply(size_t sums, size_t a, size_t b) {
    require(rows_[sums] > 0 && rows_[a] == rows_[sums] && rows_[b] * size_t{4} == row_bytes_[a]);
    constexpr unsigned kZeros = 0x8040, kRounding = 0x6000;
    const unsigned before = _mm_getcsr();
    _mm_setcsr((before | kZeros) & ~kRounding);
    asm volatile("" ::: "memory");
    for (size_t r = 0; r < rows_[sums]; ++r) add_row(data_[a][r], data_[b], data_[sums][r]);
    asm volatile("" ::: "memory");
    _mm_setcsr(before);
  }

 private:
  static float wide(uint16_t bf16) {
    const uint32_t bits = uint32_t{bf16} << 16;
    float result = 0;
    std::memcpy(&result, &bits, sizeof result);
    return result;
  }
  static void add_row(const unsigned char* a, const unsigned char (*b)[kRowBytes], unsigned char* sums) {
    float first[16] = {}, second[16] = {}, old[16];
    for (size_t pair = 0; pair < 16; ++pair) {
      uint16_t x[2], y[32];
      std::memcpy(x, a + pair * sizeof x, sizeof x);
      std::memcpy(y, b[pair], sizeof y);
      for (size_t n = 0; n < 16; ++n) {
        first[n] = __builtin_fmaf(wide(x[0]), wide(y[2 * n]), first[n]);
        second[n] = __builtin_fmaf(wide(x[1]), wide(y[2 * n + 1]), second[n]);
      }
    }
    std::memcpy(old, sums, sizeof old);
    for (size_t n = 0; n < 16; ++n) old[n] += first[n] + second[n];
    std::memcpy(sums, old, sizeof old);
  }

  alignas(64) unsigned char data_[kTiles][kRows][kRowBytes] = {};
  uint16_t row_bytes_[kTiles] = {};
  unsigned char rows_[kTiles] = {};
};
inline thread_local Tiles tiles;

}  // namespace fake_amx

#define __m512 fake_amx::Vec
#define __m512i fake_amx::Vec
#define __m256i fake_amx::Half
#define __mmask16 fake_amx::Mask16
#define __mmask32 fake_amx::Mask32
#define _mm256_maskz_loadu_epi16 fake_amx::load_half
#define _mm256_setr_epi16 fake_amx::set_half
#define _mm512_abs_ps fake_amx::absolute
#define _mm512_add_epi32 fake_amx::add_words
#define _mm512_add_ps fake_amx::add
#define _mm512_and_si512 fake_amx::both
#define _mm512_castps_si512 fake_amx::same
#define _mm512_castsi512_ps fake_amx::same
#undef _mm512_cmp_ps_mask
#define _mm512_cmp_ps_mask(a, b, kind) fake_amx::compare<kind>(a, b)
#define _mm512_cmpge_epu16_mask fake_amx::shorts_at_least
#define _mm512_cmpge_epu32_mask fake_amx::words_at_least
#define _mm512_cvtepi32_epi16 fake_amx::narrow
#define _mm512_cvtepu16_epi32 fake_amx::widen
#define _mm512_cvtph_ps fake_amx::widen_f16
#define _mm512_fmadd_ps fake_amx::multiply_add
#define _mm512_load_ps fake_amx::load_aligned
#define _mm512_load_si512 fake_amx::load_aligned
#define _mm512_loadu_ps fake_amx::load
#define _mm512_loadu_si512 fake_amx::load
#define _mm512_mask_cmpgt_epu32_mask fake_amx::words_above
#define _mm512_mask_store_ps fake_amx::store_words
#define _mm512_maskz_loadu_epi16 fake_amx::load_shorts
#define _mm512_maskz_loadu_ps fake_amx::load_words
#define _mm512_max_epu16 fake_amx::max_shorts
#define _mm512_max_epu32 fake_amx::max_words
#define _mm512_or_si512 fake_amx::either
#define _mm512_permutexvar_epi16 fake_amx::permute_shorts
#define _mm512_reduce_max_epu32 fake_amx::largest_word
#define _mm512_set1_epi16 fake_amx::set_short
#define _mm512_set1_epi32 fake_amx::set_word
#define _mm512_set1_ps fake_amx::set_float
#define _mm512_setzero_ps fake_amx::zero
#define _mm512_setzero_si512 fake_amx::zero
#undef _mm512_shuffle_i32x4
#define _mm512_shuffle_i32x4 fake_amx::shuffle_quarters
#undef _mm512_slli_epi32
#define _mm512_slli_epi32 fake_amx::shift_left
#undef _mm512_srli_epi32
#define _mm512_srli_epi32 fake_amx::shift_right
#define _mm512_store_ps fake_amx::store_aligned
#define _mm512_store_si512 fake_amx::store_aligned
#define _mm512_storeu_ps fake_amx::store
#define _mm512_storeu_si512 fake_amx::store
#define _mm512_sub_epi32 fake_amx::subtract_words
#define _mm512_sub_ps fake_amx::subtract
#undef _mm512_ternarylogic_epi32
#define _mm512_ternarylogic_epi32 fake_amx::ternary
#define _mm512_testn_epi32_mask fake_amx::nothing_in_common
#define _mm512_unpackhi_epi32(a, b) fake_amx::interleave_words(a, b, 1)
#define _mm512_unpackhi_epi64(a, b) fake_amx::interleave_pairs(a, b, 1)
#define _mm512_unpacklo_epi32(a, b) fake_amx::interleave_words(a, b, 0)
#define _mm512_unpacklo_epi64(a, b) fake_amx::interleave_pairs(a, b, 0)
#undef _tile_dpbf16ps
#define _tile_dpbf16ps fake_amx::tiles.multiply
#undef _tile_loadconfig
#define _tile_loadconfig fake_amx::tiles.configure
#undef _tile_loadd
#define _tile_loadd fake_amx::tiles.load
#undef _tile_release
#define _tile_release fake_amx::tiles.release
#undef _tile_stored
#define _tile_stored fake_amx::tiles.store
#undef _tile_zero
#define _tile_zero fake_amx::tiles.clear
