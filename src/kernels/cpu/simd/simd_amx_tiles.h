// For simd_amx.cpp: the tile registers, and the products of planes that they sum over one block of k.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/simd/simd_amx_planes.h"

namespace lfm2 {
namespace {

struct alignas(64) TileConfig {
  unsigned char palette = 1, start_row = 0, reserved[14] = {};
  unsigned short row_bytes[16] = {};
  unsigned char rows[16] = {};
};

// For at most `rows` rows of a.
void configure_tiles(size_t rows = kHalves * kSide) {
  TileConfig config;
  for (size_t tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = kRowBytes;
    config.rows[tile] = kSide;
  }
  // Fewer rows take less time.
  const auto first = static_cast<unsigned char>(rows < kSide ? rows : kSide);
  const auto second = static_cast<unsigned char>(rows > kSide ? rows - kSide : kSide);
  config.rows[0] = config.rows[2] = config.rows[6] = first;
  config.rows[1] = config.rows[3] = config.rows[7] = second;
  // Keeps the compiler from moving stores of the configuration and of packed elements past this point.
  asm volatile("" ::: "memory");
  _tile_loadconfig(&config);
}

// Prefetches the lines of the rows part, part + parts, ...: one line per call, because more at once would delay the
// tiles.
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

// The address from which a step of a tile of weights prefetches: kAhead bytes further, in the tile or in the tile that
// is multiplied next.
constexpr size_t kAhead = 8192;
inline __attribute__((always_inline)) const std::byte* ahead_of(const FewProduct& p, size_t step) {
  const size_t row = kTileColumns * element_bytes(p.w.type), at = step * kStep * row + kAhead, end = p.w.k * row;
  return at < end ? static_cast<const std::byte*>(p.w.data) + at : static_cast<const std::byte*>(p.next_w) + (at - end);
}

// Prefetches part `part` of the 32 of a step.
template <class T>
inline __attribute__((always_inline)) void prefetch_part(const std::byte* step, size_t part) {
  constexpr size_t kPartBytes = kStep * sizeof(T);
  for (size_t byte = 0; byte < kPartBytes; byte += kRowBytes) __builtin_prefetch(step + part * kPartBytes + byte, 0, 2);
}

// Prefetches lines of packed planes from the L2 to the L1 cache. Reaching beyond the last one is harmless.
template <size_t lines>
inline __attribute__((always_inline)) void prefetch_lines(const std::byte* from) {
#pragma GCC unroll 64
  for (size_t line = 0; line < lines; ++line) __builtin_prefetch(from + line * kRowBytes, 0, 3);
}

// The tile registers: 0 to 3 are sums [half of w][half of a], 4 and 5 are the halves of w, 6 and 7 the halves of a.
inline __attribute__((always_inline)) void zero_tiles() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

// The number of products of planes for an element, without the product of the first planes.
constexpr size_t small_products(size_t planes_w, size_t planes_a) {
  return planes_w * planes_a == 9 ? 5 : planes_w * planes_a == 6 ? 4 : planes_w * planes_a - 1;
}

// Adds the product of plane i of w and plane j of a over one step of k. w(i, half) is the address of a tile. If load_w
// or load_a is false, the previous product has left the plane in its registers.
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
  _tile_dpbf16ps(0, 6, 4);
  if constexpr (both) _tile_dpbf16ps(1, 7, 4);
  _tile_dpbf16ps(2, 6, 5);
  if constexpr (both) _tile_dpbf16ps(3, 7, 5);
}

// Adds all small products over one step of k, and calls between(n) after the n-th.
template <size_t planes_w, size_t planes_a, bool both, class W, class F>
inline __attribute__((always_inline)) void multiply_small(W&& w, const std::byte* a, F&& between) {
  const auto multiply = [&](size_t i, size_t j, bool load_w, bool load_a, size_t nth) __attribute__((always_inline)) {
    multiply_planes<planes_a, both>(w, a, i, j, load_w, load_a);
    between(nth);
  };
  size_t nth = 0;  // in this order, neighbours share a plane
  if constexpr (planes_a > 2) multiply(0, 2, true, true, nth++);
  if constexpr (planes_a > 1) multiply(0, 1, planes_a == 2, true, nth++);
  if constexpr (planes_w > 1 && planes_a > 1) multiply(1, 1, true, false, nth++);
  if constexpr (planes_w > 1) multiply(1, 0, planes_a == 1, true, nth++);
  if constexpr (planes_w > 2) multiply(2, 0, true, false, nth++);
}

// The step of the nth product of first planes: backwards if small products came before, because the last steps are
// still in the cache.
constexpr size_t step_of(size_t nth, size_t count, size_t small) { return small > 0 ? count - 1 - nth : nth; }

// The planes of w and a in the small product `nth` of a step. The order is that of multiply_small.
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

// Adds the product of the loaded planes, and loads the planes of the next product as soon as their registers are free.
// Calls between(n) after each quarter.
template <size_t planes_w, size_t planes_a, bool both, bool load_w, bool load_a, class F>
inline __attribute__((always_inline)) void multiply_loaded(const std::byte* w, const std::byte* a, F&& between) {
  constexpr size_t kHalfW = planes_w * kTileBytes, kHalfA = planes_a * kTileBytes;
  _tile_dpbf16ps(0, 6, 4);
  between(0);
  if constexpr (load_a) {
    _tile_dpbf16ps(2, 6, 5);
    _tile_loadd(6, a, kRowBytes);
    between(1);
    if constexpr (both) _tile_dpbf16ps(1, 7, 4);
    if constexpr (load_w) _tile_loadd(4, w, kRowBytes);
    between(2);
    if constexpr (both) _tile_dpbf16ps(3, 7, 5);
    if constexpr (both) _tile_loadd(7, a + kHalfA, kRowBytes);
    if constexpr (load_w) _tile_loadd(5, w + kHalfW, kRowBytes);
  } else {
    if constexpr (both) _tile_dpbf16ps(1, 7, 4);
    if constexpr (load_w) _tile_loadd(4, w, kRowBytes);
    between(1);
    _tile_dpbf16ps(2, 6, 5);
    between(2);
    if constexpr (both) _tile_dpbf16ps(3, 7, 5);
    if constexpr (load_w) _tile_loadd(5, w + kHalfW, kRowBytes);
  }
  between(3);
}

// Computes the sums of one register tile over one block of k.
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
  // The first planes if there are no small products.
  constexpr Planes kFirst = small_product<planes_w, planes_a>(0);
  _tile_loadd(4, w + kFirst.w * kTileBytes, kRowBytes);
  _tile_loadd(5, w + (planes_w + kFirst.w) * kTileBytes, kRowBytes);
  _tile_loadd(6, a + kFirst.a * kTileBytes, kRowBytes);
  if constexpr (both) _tile_loadd(7, a + (planes_a + kFirst.a) * kTileBytes, kRowBytes);
  // Several planes are more than the L1 cache holds. So what comes next is prefetched into it while the tiles multiply,
  // some lines at a time, because more at once would delay the loads of tiles. Each quarter of a small product
  // prefetches a part of the next step's a and w, each product of first planes those of the next step but one.
  constexpr bool kFetch = planes_w > 1;
  constexpr size_t kQuarters = 4 * (kSmall > 0 ? kSmall : 1);
  constexpr size_t kLinesA = (kTilesA * kSide + kQuarters - 1) / kQuarters;
  constexpr size_t kLinesW = (kHalves * planes_w * kSide + kQuarters - 1) / kQuarters;
  for (size_t s = 0; kSmall > 0 && s < count; ++s) {
    const std::byte *w_step = w + s * kStepW, *a_step = a + s * kStepA;
    const auto product = [&]<size_t nth>(Constant<nth>) __attribute__((always_inline)) {
      if constexpr (nth < kSmall) {
        constexpr Planes kThis = small_product<planes_w, planes_a>(nth);
        const auto between = [&](size_t quarter) __attribute__((always_inline)) {
          const size_t part = nth * 4 + quarter;
          if constexpr (kFetch) prefetch_lines<kLinesA>(a_step + kStepA + part * kLinesA * kRowBytes);
          if constexpr (kFetch) prefetch_lines<kLinesW>(w_step + kStepW + part * kLinesW * kRowBytes);
        };
        if constexpr (nth + 1 < kSmall) {
          constexpr Planes kNext = small_product<planes_w, planes_a>(nth + 1);
          multiply_loaded<planes_w, planes_a, both, kThis.w != kNext.w, kThis.a != kNext.a>(
              w_step + kNext.w * kTileBytes, a_step + kNext.a * kTileBytes, between);
        } else {  // loads the planes of the next step's first product, or the first planes of the last step
          const bool more = s + 1 < count;
          multiply_loaded<planes_w, planes_a, both, true, true>(more ? w_step + kStepW + kFirst.w * kTileBytes : w_step,
                                                                more ? a_step + kStepA + kFirst.a * kTileBytes : a_step,
                                                                between);
        }
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
    const size_t later = step_of(nth + 2 < count ? nth + 2 : nth, count, kSmall);
    multiply_loaded<planes_w, planes_a, both, true, true>(
        w + next * kStepW, a + next * kStepA, [&](size_t quarter) __attribute__((always_inline)) {
          const std::byte* plane = quarter < 2 ? w + later * kStepW : a + later * kStepA;
          const size_t half = quarter % 2 * (quarter < 2 ? planes_w : planes_a) * kTileBytes;
          if (kFetch && (quarter < 3 || both)) prefetch_lines<kSide>(plane + half);
        });
    fetch();
  }
}

}  // namespace
}  // namespace lfm2
