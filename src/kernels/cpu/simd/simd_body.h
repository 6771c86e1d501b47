// The body of the vector kernels. Each simd_<instruction set>.cpp defines its registers, then includes this file.
//
// Those files are compiled with flags that other processors cannot run. So everything here has internal linkage and no
// inline function of another header is called: the linker could keep this file's copy of it for the whole program.
//
// The including file defines:
//   Vec, kWidth      one register, a GCC vector of floats, and the number of its floats
//   kParts           registers for 16 lanes
//   kDotTileColumns  columns of a tile of dot products
//   kTileRows        rows of a register tile of the matrix product, which is two registers wide
//   kFewTiles        up to this many tiles of rows the product of few rows is faster
//   kPairF16         whether fp16 is transposed in pairs, which widen(Vec pairs, bool upper, F16) makes fp32 again
//   load(const T*)   kWidth elements as fp32; T is float, Bf16 or F16
//   lane_sums<columns>(lanes, sums)  folds the 16 lanes of each column and adds the result to the column's sum
//   store(float*, Vec), zero(), broadcast(float), fma(a, b, sum), transpose(Vec (&)[kWidth])
#pragma once

#include "kernels/cpu/simd/simd.h"

namespace lfm2 {
namespace {

using IntVec = int __attribute__((vector_size(sizeof(Vec))));

// Calls f(T{}) with the stored type T.
template <class F>
void with_type(DType type, F&& f) {
  switch (type) {
    case DType::kF32:
      return f(float{});
    case DType::kBf16:
      return f(Bf16{});
    case DType::kF16:
      return f(F16{});
    case DType::kI32:
    case DType::kF8:
      return;  // the operators refuse it
  }
}

// Loads x[0 … count), followed by zeros; count < kWidth.
template <class T>
Vec load_some(const T* x, size_t count) {
  T copy[kWidth] = {};  // all bits zero is the number 0 in each of the types
  for (size_t i = 0; i < count; ++i) copy[i] = x[i];
  return load(copy);
}

}  // namespace
}  // namespace lfm2

#include "kernels/cpu/simd/simd_matmul.h"

namespace lfm2 {
namespace {

// ------------------------------------------------------------------------------------------------------ dot products

// Adds the products of 16 elements for a tile of rows x columns.
template <size_t rows, size_t columns>
inline __attribute__((always_inline)) void dots_step(Vec (&lanes)[rows][columns][kParts], const float* x,
                                                     size_t x_stride, const float* y, size_t y_stride) {
  for (size_t p = 0; p < kParts; ++p) {
    Vec row[rows];
    for (size_t r = 0; r < rows; ++r) row[r] = load(x + r * x_stride + p * kWidth);
    for (size_t c = 0; c < columns; ++c) {
      const Vec column = load(y + c * y_stride + p * kWidth);
      for (size_t r = 0; r < rows; ++r) lanes[r][c][p] = fma(row[r], column, lanes[r][c][p]);
    }
  }
}

// Computes a tile of sums over n <= kBlockK elements.
template <size_t rows, size_t columns>
void dots_tile(const float* x, size_t x_stride, const float* y, size_t y_stride, size_t n, float* sums,
               size_t sums_stride) {
  Vec lanes[rows][columns][kParts];
  for (size_t r = 0; r < rows; ++r)
    for (size_t c = 0; c < columns; ++c)
      for (size_t p = 0; p < kParts; ++p) lanes[r][c][p] = zero();

  for (; n >= kLanes; n -= kLanes, x += kLanes, y += kLanes) dots_step(lanes, x, x_stride, y, y_stride);
  if (n > 0) {  // the missing elements of the last 16 count as zeros
    alignas(64) float x_tail[rows * kLanes] = {};
    alignas(64) float y_tail[columns * kLanes] = {};
    for (size_t i = 0; i < n; ++i) {
      for (size_t r = 0; r < rows; ++r) x_tail[r * kLanes + i] = x[r * x_stride + i];
      for (size_t c = 0; c < columns; ++c) y_tail[c * kLanes + i] = y[c * y_stride + i];
    }
    dots_step(lanes, x_tail, kLanes, y_tail, kLanes);
  }
  for (size_t r = 0; r < rows; ++r) lane_sums<columns>(lanes[r], sums + r * sums_stride);
}

template <size_t rows>
void dots_rows(const Dots& dots, const float* x, size_t first, size_t n, float* sums) {
  const float* y = dots.y + first;
  size_t c = 0;
  for (; c + kDotTileColumns <= dots.columns; c += kDotTileColumns)
    dots_tile<rows, kDotTileColumns>(x, dots.x_stride, y + c * dots.y_stride, dots.y_stride, n, sums + c,
                                     dots.sums_stride);
  for (; c < dots.columns; ++c)
    dots_tile<rows, 1>(x, dots.x_stride, y + c * dots.y_stride, dots.y_stride, n, sums + c, dots.sums_stride);
}

void dots(const Dots& dots) {
  constexpr size_t kRows = 3;
  for (size_t r = 0; r < dots.rows; ++r)
    for (size_t c = 0; c < dots.columns; ++c) dots.sums[r * dots.sums_stride + c] = 0;
  for (size_t first = 0; first < dots.n; first += kBlockK) {
    const size_t n = dots.n - first < kBlockK ? dots.n - first : kBlockK;
    const float* x = dots.x + first;
    size_t r = 0;
    for (; r + kRows <= dots.rows; r += kRows)
      dots_rows<kRows>(dots, x + r * dots.x_stride, first, n, dots.sums + r * dots.sums_stride);
    for (; r < dots.rows; ++r) dots_rows<1>(dots, x + r * dots.x_stride, first, n, dots.sums + r * dots.sums_stride);
  }
}

// ------------------------------------------------------------------------------------------------------ weighted sums

// Sums `groups` x 16 neighbouring elements over one block of rows; only the first `width` of them exist.
template <size_t groups>
void mix_columns(const Mixture& mixture, size_t first_row, size_t rows, size_t first, size_t width) {
  Vec sums[groups * kParts];
  for (Vec& sum : sums) sum = zero();
  alignas(64) float copy[groups * kLanes] = {};
  for (size_t i = 0; i < rows; ++i) {
    const float* values = mixture.values + (first_row + i) * mixture.stride + first;
    if (width < groups * kLanes) {
      for (size_t j = 0; j < width; ++j) copy[j] = values[j];
      values = copy;
    }
    const Vec weight = broadcast(mixture.weights[first_row + i]);
    for (size_t p = 0; p < groups * kParts; ++p) sums[p] = fma(weight, load(values + p * kWidth), sums[p]);
  }
  for (size_t p = 0; p < groups * kParts; ++p) store(copy + p * kWidth, sums[p]);
  for (size_t j = 0; j < width; ++j) mixture.out[first + j] += copy[j];
}

void mix(const Mixture& mixture) {
  constexpr size_t kGroups = 4;  // 4 x 16 elements: a head of 64
  for (size_t d = 0; d < mixture.n; ++d) mixture.out[d] = 0;
  for (size_t row = 0; row < mixture.count; row += kBlockK) {
    const size_t rows = mixture.count - row < kBlockK ? mixture.count - row : kBlockK;
    size_t d = 0;
    for (; d + kGroups * kLanes <= mixture.n; d += kGroups * kLanes)
      mix_columns<kGroups>(mixture, row, rows, d, kGroups * kLanes);
    for (; d + 2 * kLanes <= mixture.n; d += 2 * kLanes) mix_columns<2>(mixture, row, rows, d, 2 * kLanes);
    for (; d < mixture.n; d += kLanes)
      mix_columns<1>(mixture, row, rows, d, mixture.n - d < kLanes ? mixture.n - d : kLanes);
  }
}

// ------------------------------------------------------------------------------------------------------- exponentials

constexpr float kExp3 = 0x1.5554a4p-3f, kExp4 = 0x1.555688p-5f, kExp5 = 0x1.122fc2p-7f, kExp6 = 0x1.6b6e18p-10f;

// exp(x) = 2^n e^r, where n is the integer nearest to x / ln 2, so |r| <= ln 2 / 2, and e^r is a polynomial of degree 6
// (minimax in relative error). A NaN stays a NaN in every step.
inline __attribute__((always_inline)) Vec exponential(Vec x) {
  // Beyond these, the result is 0 or infinity.
  const Vec least = broadcast(-104.0f), largest = broadcast(89.0f);
  x = x < least ? least : x;
  x = x > largest ? largest : x;
  const Vec round = broadcast(0x1.8p23f);  // adding it leaves the integer in the low bits
  const Vec shifted = fma(x, broadcast(0x1.715476p0f), round);
  const Vec n = shifted - round;
  // The constant ln 2 is in two parts; the product of n and the first part is exact.
  Vec r = fma(n, broadcast(-0x1.62e4p-1f), x);
  r = fma(n, broadcast(-0x1.7f7d1cp-20f), r);
  Vec p = broadcast(kExp6);
  p = fma(p, r, broadcast(kExp5));
  p = fma(p, r, broadcast(kExp4));
  p = fma(p, r, broadcast(kExp3));
  p = fma(p, r, broadcast(0.5f));
  p = fma(p, r * r, r) + broadcast(1.0f);
  // 2^n is multiplied in two factors, because 2^n leaves the range of normal numbers before the result does.
  const IntVec power = (IntVec)shifted - (IntVec)round, half = power >> 1;
  const Vec low = (Vec)((half + 127) << 23), high = (Vec)((power - half + 127) << 23);
  return p * low * high;
}

template <class F>
inline __attribute__((always_inline)) void for_each_vector(size_t n, F&& f) {
  size_t i = 0;
  for (; i + kWidth <= n; i += kWidth) f(i, kWidth);
  if (i < n) f(i, n - i);
}

Vec load_up_to(const float* x, size_t count) { return count == kWidth ? load(x) : load_some(x, count); }
void store_up_to(float* x, Vec value, size_t count) {
  if (count == kWidth) return store(x, value);
  float copy[kWidth];
  store(copy, value);
  for (size_t i = 0; i < count; ++i) x[i] = copy[i];
}

void exponentials(const float* x, float* out, size_t n) {
  for_each_vector(n,
                  [&](size_t i, size_t count) { store_up_to(out + i, exponential(load_up_to(x + i, count)), count); });
}

void add(const float* x, const float* y, float* out, size_t n) {
  for_each_vector(n, [&](size_t i, size_t count) {
    store_up_to(out + i, load_up_to(x + i, count) + load_up_to(y + i, count), count);
  });
}

// Counts in elements' own type, block by block, so that compilers vectorize it and no count overflows.
template <class Bits>
size_t count_bits(const std::byte* x, size_t n, Bits begin, Bits end) {
  constexpr size_t kBlock = 1024;
  constexpr auto kMagnitude = static_cast<Bits>(static_cast<Bits>(~Bits{0}) >> 1);
  const auto width = static_cast<Bits>(end - begin);
  size_t found = 0;
  for (size_t first = 0; first < n; first += kBlock) {
    const size_t count = n - first < kBlock ? n - first : kBlock;
    Bits in_block = 0;
    for (size_t i = 0; i < count; ++i) {
      Bits bits = 0;
      __builtin_memcpy(&bits, x + (first + i) * sizeof bits, sizeof bits);
      const auto above = static_cast<Bits>(static_cast<Bits>(bits & kMagnitude) - begin);
      in_block = static_cast<Bits>(in_block + (above < width ? 1 : 0));
    }
    found += in_block;
  }
  return found;
}

size_t count_magnitudes(const std::byte* x, size_t element_bytes, size_t n, uint32_t begin, uint32_t end) {
  if (element_bytes == sizeof(uint32_t)) return count_bits<uint32_t>(x, n, begin, end);
  return count_bits<uint16_t>(x, n, static_cast<uint16_t>(begin), static_cast<uint16_t>(end));
}

void widen(const RowsView& x, float* out) {
  with_type(x.type, [&](auto type) {
    using T = decltype(type);
    for (size_t r = 0; r < x.rows; ++r, out += x.k) {
      const T* row = static_cast<const T*>(x.data) + r * x.stride;
      for_each_vector(x.k, [&](size_t i, size_t count) {
        store_up_to(out + i, count == kWidth ? load(row + i) : load_some(row + i, count), count);
      });
    }
  });
}

void silu_multiply(const float* gate, const float* up, float* out, size_t n) {
  for_each_vector(n, [&](size_t i, size_t count) {
    const Vec x = load_up_to(gate + i, count), y = load_up_to(up + i, count);
    store_up_to(out + i, x / (broadcast(1.0f) + exponential(-x)) * y, count);
  });
}

}  // namespace
}  // namespace lfm2
