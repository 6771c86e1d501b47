// The vector kernels for AVX-512 with BF16: those of AVX-512, except for products of bf16 by bf16. There one
// instruction multiplies pairs of neighbours along k: it adds the product of the second by a fused multiply-add, then
// that of the first, and treats subnormal numbers as zeros, in operands and in sums. So such products have bits that no
// other table gives. Other products have the bits of AVX-512. In all of them a block of k is summed from zero, pair by
// pair in order, whatever the rows and columns beside it.
//
// The operands are packed in pairs, each in the place of one fp32: an odd last element has a zero beside it.
#include "kernels/cpu/simd/simd_avx512_registers.h"
// The body needs the registers.
#include "kernels/cpu/simd/simd_body.h"

namespace lfm2 {
namespace {

// Two neighbours along k at a time, both bf16.
struct Pairs {
  using Element = uint32_t;
  static constexpr size_t kElements = 2;
  static Vec spread(uint32_t a) { return (Vec)_mm512_set1_epi32(static_cast<int>(a)); }
  static Vec multiply(Vec a, Vec w, Vec sum) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)w); }
  template <class T>
  static Vec element(Vec units, size_t) {
    return units;
  }
};

bool in_pairs(DType a, DType w) { return a == DType::kBf16 && w == DType::kBf16; }

size_t a_bytes(DType a, DType w) { return in_pairs(a, w) ? packed_a_bytes<Pairs>() : packed_a_bytes<Singles>(); }
size_t w_bytes(DType a, DType w) { return in_pairs(a, w) ? packed_w_bytes<Pairs>() : packed_w_bytes<Singles>(); }

// Packs rows of a as pairs: [rows, kPackedStride<Pairs>].
void pack_a_pairs(const RowsView& a, std::byte* packed) {
  for (size_t r = 0; r < kernel_rows(a.rows); ++r, packed += kPackedStride<Pairs> * sizeof(uint32_t)) {
    const size_t bytes = r < a.rows ? a.k * sizeof(Bf16) : 0, all = steps_of<Pairs>(a.k) * sizeof(uint32_t);
    if (bytes > 0) __builtin_memcpy(packed, static_cast<const Bf16*>(a.data) + r * a.stride, bytes);
    __builtin_memset(packed + bytes, 0, all - bytes);
  }
}

void pack_a(const RowsView& a, DType w_type, std::byte* packed) {
  in_pairs(a.type, w_type) ? pack_a_pairs(a, packed) : pack_a_singles(a, packed);
}
void pack_w(const RowsView& w, DType a_type, std::byte* packed) {
  in_pairs(a_type, w.type) ? pack_w<Pairs, Bf16>(w, packed) : pack_w_singles(w, packed);
}
bool tile_is_packed(DType a, DType w) { return in_pairs(a, w) || w == DType::kF32; }
void multiply_any(const PackedProduct& p) { in_pairs(p.a_type, p.w_type) ? multiply<Pairs>(p) : multiply<Singles>(p); }
void multiply_few_any(const FewProduct& p) {
  in_pairs(p.a_rows.type, p.w.type) ? multiply_few<Pairs, Bf16>(p) : multiply_few_singles(p);
}

constinit const MatmulKernel kMatmulPairs{.tile_rows = kTileRows,
                                          .tile_columns = kTileColumns,
                                          .block_k = kMatmulBlockK,
                                          .a_bytes = a_bytes,
                                          .w_bytes = w_bytes,
                                          .pack_a = pack_a,
                                          .pack_w = pack_w,
                                          .multiply = multiply_any,
                                          .multiply_few = multiply_few_any,
                                          .few_tiles = kFewTiles,
                                          .few_tiles_tiled = kFewTilesTiled,
                                          .few_columns = few_columns,
                                          .has_tiles = has_tiles,
                                          .tile_w = tile_w,
                                          .row_of_tile = row_of_tile,
                                          .tile_is_packed = tile_is_packed};

}  // namespace

constinit const Simd kSimdAvx512Bf16{"avx512bf16", &kMatmulPairs,    dots, mix, exponentials, silu_multiply,
                                     add,          count_magnitudes, widen};

}  // namespace lfm2
