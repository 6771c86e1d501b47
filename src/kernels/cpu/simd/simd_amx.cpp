// The matrix product on AMX tiles: fp32 as a sum of bf16 planes, whose products are exact.
//
// A value is cut into planes of 8 significant bits, x = x0 + x1 + x2 exactly (bf16: x0 alone; fp16: x0 + x1). Each
// plane is the remainder so far, rounded to bf16. The product a w is the sum of all ai wj with i + j < 3; the rest is
// below 2^-23 |a w| and has any sign. A block of k is summed in steps of 32 elements, in pairs (i, i + 16). First come
// all small products (i + j > 0), then the products of the first planes, so that few roundings happen while the sums
// are large. The products are exact, and the instruction rounds about once for its 32 elements.
//
// Tiles treat numbers below 2^-126 as zero, and an infinity has no planes. So a sum over a block of k is computed by
// plain fused multiply-adds, as the vector kernels do, where
//   - its row of a or of w holds a number of kLarge or more in the block, or
//   - the tiles' sum is below kLeast, infinite or a NaN.
// Elsewhere the tiles lose less than 2^-85 in a block: 256 elements times 2^-126 for each plane, times less than
// kLarge. That is 2^-6 units in the last place of kLeast. The choice depends on the row of a and the row of w alone, as
// the sum does.
//
// The instruction takes rows of w as they are stored (16 rows, 32 elements), and a as [pairs of elements, rows]. The
// tile of sums is [columns, rows]; the last block transposes it.
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
              p.k > 0 && (large_w || reinterpret_cast<const Head*>(a)->large), p.first, p.last,
              p.sums + tile * kRows * kRows);
  }
  _tile_release();
}

// Packs one step of the rows of w for multiply_few, some rows at a time: plane 0 as [tile_columns, 32 elements], the
// others as [planes, tile_columns, 32 elements]. Behind the last row that row is repeated, for sums that nobody reads.
template <class T, size_t planes_w>
class StepPacker {
 public:
  explicit StepPacker(const FewProduct& p) : p_(p), row_bytes_((p.w.tiled ? kStep : p.w.stride) * sizeof(T)) {}

  // Prepares the step that begins at element i of the rows.
  void begin(size_t i, std::byte* first_plane, std::byte* others) {
    const size_t byte = i * sizeof(T), ahead = byte + kAhead, row_bytes = p_.w.k * sizeof(T);
    row_ = static_cast<const std::byte*>(p_.w.data) + offset_of(p_.w, 0, i) * sizeof(T);
    const std::byte* next_w = static_cast<const std::byte*>(p_.next_w);
    if (!p_.w.tiled) to_soon_ = (ahead < row_bytes ? row_ + kAhead : next_w + ahead - row_bytes) - row_;
    left_ = p_.w.k - i;
    first_plane_ = first_plane;
    others_ = others;
  }
  bool whole() const { return left_ >= kStep; }
  // Packs the rows [first, end) of a step that has all its elements.
  inline __attribute__((always_inline)) void pack(size_t first, size_t end) {
    for (size_t r = first; r < end; ++r) pack_row(r, kStep);
  }
  // Packs all rows of a step that may be shorter. The packer goes by value, because one whose address is taken cannot
  // stay in registers.
  __attribute__((noinline)) static Largest pack_all(StepPacker packer) {
    const size_t left = packer.left_ < kStep ? packer.left_ : kStep;
    for (size_t r = 0; r < kRows; ++r) packer.pack_row(r, left);
    return packer.largest_;
  }
  void pack_all() { largest_.take(pack_all(*this)); }
  bool large() const { return largest_.large(); }

 private:
  static constexpr size_t kRows = kHalves * kSide;
  static constexpr size_t kAhead = 1024;       // how many bytes ahead each row is prefetched
  static constexpr size_t kAheadTiled = 8192;  // in a tile, which is read from end to end, as the next one is

  inline __attribute__((always_inline)) void pack_row(size_t r, size_t left) {
    __m512i plane[planes_w];
    load_planes(reinterpret_cast<const T*>(row_), left, plane);
    for (size_t byte = 0; byte < kStep * sizeof(T); byte += kRowBytes) __builtin_prefetch(row_ + to_soon_ + byte, 0, 2);
    largest_.see(plane[0]);
    _mm512_store_si512(first_plane_ + r * kRowBytes, plane[0]);
    for (size_t j = 1; j < planes_w; ++j) _mm512_store_si512(others_ + ((j - 1) * kRows + r) * kRowBytes, plane[j]);
    row_ += r + 1 < p_.w.rows ? row_bytes_ : 0;
  }

  const FewProduct p_;
  const size_t row_bytes_;  // from one row to the next
  const std::byte* row_ = nullptr;
  std::ptrdiff_t to_soon_ = kAheadTiled;
  size_t left_ = 0;
  std::byte *first_plane_ = nullptr, *others_ = nullptr;
  Largest largest_;  // over all blocks so far: a number that is larger than those of this block only costs time
};

// Computes one register tile over all of k, for few rows of a. The next step's rows of w are packed while the tiles
// multiply those of this step.
template <class T, size_t planes_w, size_t planes_a, bool both>
void multiply_few(const FewProduct& p) {
  constexpr size_t kStepA = (both ? 2 : 1) * planes_a * kTileBytes, kSmall = small_products(planes_w, planes_a);
  constexpr size_t kRows = kHalves * kSide, kPlane = kHalves * kTileBytes;
  // The rows of a step that are packed during each step of a block.
  constexpr size_t kShare = kRows * kStep / kBlock;
  // The first planes of a whole block and of the next block's first step are kept.
  constexpr size_t kKept = kBlock / kStep + 1;
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
        // Keeps the compiler from moving the stores of the packer behind the loads of the tiles.
        asm volatile("" ::: "memory");
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

// A step of each row stands behind that of the row before.
void tile_w(const RowsView& rows, std::byte* tile) {
  const size_t element = element_bytes(rows.type), step_bytes = kStep * element;
  for (size_t i = 0; i < rows.k; i += kStep)
    for (size_t r = 0; r < kTileColumns; ++r, tile += step_bytes)
      __builtin_memcpy(tile, static_cast<const std::byte*>(rows.data) + offset_of(rows, r, i) * element, step_bytes);
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
    .few_tiles = 3,
    .few_tiles_tiled = 3,
    .few_columns = [](size_t) -> size_t { return 1; },
    .tile_unit_bytes = [](DType w) { return kStep * element_bytes(w); },
    .tile_w = tile_w,
    .tile_is_packed = [](DType, DType) { return false; }};

}  // namespace lfm2
