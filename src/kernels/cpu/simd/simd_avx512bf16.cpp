// The vector kernels for AVX-512 with BF16: those of AVX-512, but for products of bf16 by bf16. There one instruction
// multiplies pairs of neighbours along k: it adds the product of the second by a fused multiply-add, then that of the
// first, and takes subnormal numbers for zeros, in operands and in sums. So the bits of such products are its own.
// Other products have the bits of AVX-512. In all of them a block of k is summed from zero, pair by pair in order,
// whatever the rows and columns beside it.
//
// bf16 is packed in pairs, each in the place of one fp32: an odd last element has a zero beside it.
#include "kernels/cpu/simd/simd_avx512_registers.h"
// The body needs the registers.
#include "kernels/cpu/simd/simd_body.h"

namespace lfm2 {
namespace {

constexpr size_t kBlockPairs = kMatmulBlockK / 2;
constexpr size_t kPairStride = kBlockPairs + 16;  // of a packed row of a; its rows do not share cache sets

size_t pairs_of(size_t k) { return (k + 1) / 2; }

Vec add_pairs(Vec sum, uint32_t a, Vec w) {
  return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(static_cast<int>(a)), (__m512bh)w);
}

size_t a_bytes(DType type) {
  return type == DType::kBf16 ? kTileRows * kPairStride * sizeof(uint32_t) : packed_a_bytes(type);
}
size_t w_bytes(DType type) {
  return type == DType::kBf16 ? kBlockPairs * kTileColumns * sizeof(uint32_t) : packed_w_bytes(type);
}

// Packs rows of a as pairs: [rows, kPairStride].
void pack_a_pairs(const RowsView& a, std::byte* packed) {
  if (a.type != DType::kBf16) return pack_a(a, packed);
  for (size_t r = 0; r < kernel_rows(a.rows); ++r, packed += kPairStride * sizeof(uint32_t)) {
    const size_t bytes = r < a.rows ? a.k * sizeof(Bf16) : 0, all = pairs_of(a.k) * sizeof(uint32_t);
    if (bytes > 0) __builtin_memcpy(packed, static_cast<const Bf16*>(a.data) + r * a.stride, bytes);
    __builtin_memset(packed + bytes, 0, all - bytes);
  }
}

// Packs rows of w as pairs, transposed: [pairs, kTileColumns].
void pack_w_pairs(const RowsView& w, std::byte* packed) {
  if (w.type != DType::kBf16) return pack_w(w, packed);
  auto* target = reinterpret_cast<float*>(packed);
  for (size_t i = 0; i < w.k; i += 2 * kWidth, target += kWidth * kTileColumns)
    for (size_t c = 0; c < kTileColumns; c += kWidth) {
      const size_t count = w.k - i < 2 * kWidth ? w.k - i : 2 * kWidth, rows = w.rows < c ? 0 : w.rows - c;
      const Bf16* first = static_cast<const Bf16*>(w.data) + c * w.stride + i;
      Square<Bf16> part;
      if (rows >= kWidth && count == 2 * kWidth)
        part.load_rows(first, w.stride);
      else
        part.load_part(first, w.stride, rows, count);
      for (size_t j = 0; j < pairs_of(count); ++j) store(target + j * kTileColumns + c, part.columns[j]);
    }
}

template <size_t rows>
void multiply_pairs_tile(const uint32_t* a, const float* w, size_t pairs, float* sums, bool first) {
  Vec tile[rows][kTileVecs];
#pragma GCC unroll 16
  for (size_t r = 0; r < rows; ++r)
    for (size_t v = 0; v < kTileVecs; ++v) tile[r][v] = zero();
  for (size_t i = 0; i < pairs; ++i, w += kTileColumns) {
    Vec columns[kTileVecs];
    for (size_t v = 0; v < kTileVecs; ++v) columns[v] = load(w + v * kWidth);
#pragma GCC unroll 16
    for (size_t r = 0; r < rows; ++r)
      for (size_t v = 0; v < kTileVecs; ++v) tile[r][v] = add_pairs(tile[r][v], a[r * kPairStride + i], columns[v]);
  }
#pragma GCC unroll 16
  for (size_t r = 0; r < rows; ++r)
    for (size_t v = 0; v < kTileVecs; ++v) {
      float* sum = sums + r * kTileColumns + v * kWidth;
      store(sum, first ? tile[r][v] : load(sum) + tile[r][v]);
    }
}

// Calls f with the number of rows that the kernel for `rows` rows computes, as a constant.
template <class F>
void with_kernel_rows(size_t rows, F&& f) {
  switch (kernel_rows(rows)) {
    case 1:
      return f(std::integral_constant<size_t, 1>{});
    case 2:
      return f(std::integral_constant<size_t, 2>{});
    case 4:
      return f(std::integral_constant<size_t, 4>{});
    case 8:
      return f(std::integral_constant<size_t, 8>{});
    default:
      return f(std::integral_constant<size_t, kTileRows>{});
  }
}

void multiply_pairs(const PackedProduct& p) {
  const auto* a = reinterpret_cast<const uint32_t*>(p.a);
  const auto* w = reinterpret_cast<const float*>(p.w);
  const size_t tiles = (p.rows + kTileRows - 1) / kTileRows;
  for (size_t tile = 0; tile < tiles; ++tile, a += kTileRows * kPairStride) {
    fetch_part(p.next_w, tile, tiles);
    fetch_part(p.out, tile, tiles);
    with_kernel_rows(p.rows - tile * kTileRows < kTileRows ? p.rows - tile * kTileRows : kTileRows, [&](auto rows) {
      multiply_pairs_tile<rows()>(a, w, pairs_of(p.k), p.sums + tile * kTileRows * kTileColumns, p.first);
    });
  }
}

// The fp32 form of packed pairs: `rows` rows of a, or the columns of w.
void unpack_a(const std::byte* packed, size_t rows, size_t k, float* target) {
  const auto* pairs = reinterpret_cast<const uint32_t*>(packed);
  for (size_t r = 0; r < rows; ++r)
    for (size_t i = 0; i < k; ++i) {
      const uint32_t pair = pairs[r * kPairStride + i / 2], bits = i % 2 == 0 ? pair << 16 : pair & 0xffff0000u;
      __builtin_memcpy(target + r * kPackedStride + i, &bits, sizeof bits);
    }
}
void unpack_w(const std::byte* packed, size_t k, float* target) {
  for (size_t i = 0; i < k; i += 2)
    for (size_t c = 0; c < kTileColumns; c += kWidth) {
      const IntVec pairs = (IntVec)load(reinterpret_cast<const float*>(packed) + i / 2 * kTileColumns + c);
      store(target + i * kTileColumns + c, (Vec)(pairs << 16));
      store(target + (i + 1) * kTileColumns + c, (Vec)(pairs & static_cast<int>(0xffff0000u)));
    }
}

void multiply_any(const PackedProduct& p) {
  const bool a_pairs = p.a_type == DType::kBf16, w_pairs = p.w_type == DType::kBf16;
  if (a_pairs && w_pairs) return multiply_pairs(p);
  alignas(64) float scratch[(kMatmulBlockK + 1) * kTileColumns];
  PackedProduct part = p;
  if (w_pairs) {
    unpack_w(p.w, p.k, scratch);
    part.w = reinterpret_cast<const std::byte*>(scratch);
    return multiply(part);
  }
  if (!a_pairs) return multiply(p);
  static_assert(sizeof scratch >= kTileRows * kPackedStride * sizeof(float));
  part.a = reinterpret_cast<const std::byte*>(scratch);
  for (size_t row = 0; row < p.rows; row += kTileRows) {
    part.rows = p.rows - row < kTileRows ? p.rows - row : kTileRows;
    unpack_a(p.a + row / kTileRows * a_bytes(p.a_type), kernel_rows(part.rows), p.k, scratch);
    part.sums = p.sums + row * kTileColumns;
    multiply(part);
  }
}

// multiply_few_block of pairs by pairs.
template <size_t rows>
void multiply_few_pairs(const FewProduct& p, size_t first_k, size_t k) {
  const auto* a = reinterpret_cast<const uint32_t*>(p.a + first_k / kMatmulBlockK * p.a_stride);
  const size_t stride = p.w.stride;
  const Bf16* w = static_cast<const Bf16*>(p.w.data) + first_k;
  const char* next = static_cast<const char*>(p.next_w) + first_k * kTileColumns * sizeof(Bf16);
  Vec tile[rows][kTileVecs];
  for (size_t r = 0; r < rows; ++r)
    for (size_t v = 0; v < kTileVecs; ++v) tile[r][v] = zero();
  for (size_t i = 0; i < k; i += 2 * kWidth) {
    const size_t count = k - i < 2 * kWidth ? k - i : 2 * kWidth;
    for (size_t v = 0; v < kTileVecs; ++v) {
      const size_t column = v * kWidth, left = p.w.rows < column ? 0 : p.w.rows - column;
      Square<Bf16> part;
      if (left >= kWidth && count == 2 * kWidth) {
        for (size_t line = 0; line < kWidth; ++line, next += 64) __builtin_prefetch(next, 0, 3);
        part.load_rows(w + column * stride + i, stride);
      } else {
        part.load_part(w + column * stride + i, stride, left, count);
      }
      const auto step = [&](size_t j) __attribute__((always_inline)) {
        for (size_t r = 0; r < rows; ++r)
          tile[r][v] = add_pairs(tile[r][v], a[r * kPairStride + i / 2 + j], part.columns[j]);
      };
      if (count == 2 * kWidth) {
#pragma GCC unroll 16
        for (size_t j = 0; j < kWidth; ++j) step(j);
      } else {
        for (size_t j = 0; j < pairs_of(count); ++j) step(j);
      }
    }
  }
  for (size_t r = 0; r < rows; ++r)
    for (size_t v = 0; v < kTileVecs; ++v) {
      float* sum = p.sums + r * kTileColumns + v * kWidth;
      store(sum, first_k == 0 ? tile[r][v] : load(sum) + tile[r][v]);
    }
}

void multiply_few_any(const FewProduct& p) {
  if (p.a_rows.type != DType::kBf16) return multiply_few(p);
  with_kernel_rows(p.a_rows.rows, [&](auto rows) {
    alignas(64) float scratch[rows() * kPackedStride];
    for (size_t first = 0; first < p.w.k; first += kMatmulBlockK) {
      const size_t k = p.w.k - first < kMatmulBlockK ? p.w.k - first : kMatmulBlockK;
      if (p.w.type == DType::kBf16) {
        multiply_few_pairs<rows()>(p, first, k);
        continue;
      }
      unpack_a(p.a + first / kMatmulBlockK * p.a_stride, rows(), k, scratch);
      FewProduct part = p;
      part.a = reinterpret_cast<const std::byte*>(scratch);
      part.a_stride = 0;
      with_type(p.w.type, [&](auto type) { multiply_few_block<decltype(type), rows()>(part, first, k); });
    }
  });
}

constinit const MatmulKernel kMatmulPairs{.tile_rows = kTileRows,
                                          .tile_columns = kTileColumns,
                                          .block_k = kMatmulBlockK,
                                          .a_bytes = a_bytes,
                                          .w_bytes = w_bytes,
                                          .pack_a = pack_a_pairs,
                                          .pack_w = pack_w_pairs,
                                          .multiply = multiply_any,
                                          .multiply_few = multiply_few_any};

}  // namespace

constinit const Simd kSimdAvx512Bf16{"avx512bf16", &kMatmulPairs, dots, mix, exponentials, silu_multiply, add};

}  // namespace lfm2
