// The matrix products. The rows of a are packed once, each tile of w when it is used. A work item computes a block of
// rows by a group of columns of the output. With single rows on many threads, an item computes only a part of these
// sums; with many rows, a thread takes several items at once.
#include "kernels/cpu/cpu_matmul.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/cpu/cpu_product_output.h"
#include "kernels/cpu/for_each_row.h"
#include "kernels/cpu/scaled_elements.h"

namespace lfm2 {

namespace {

// A block of this many rows, packed for one block of k, fits in the L2 cache together with its sums.
constexpr int64_t kMaxBlockRows = 576;
// Blocks are not made smaller for the sake of more work items, because each block packs all of w.
constexpr int64_t kMinBlockRows = 256;
// Packed rows of this size, over all of k, stay in the L2 cache in any order.
constexpr int64_t kFewBytes = 512 * 1024;
// Each thread gets at least this many work items, if there are enough rows and columns, so that all end at about the
// same time.
constexpr int64_t kItemsPerThread = 4;
constexpr int64_t kItemsPerThreadFew = 16;  // for few rows, whose items take as long as reading their weights

int64_t ceil_divide(int64_t x, int64_t y) { return (x + y - 1) / y; }
int64_t round_up(int64_t x, int64_t unit) { return ceil_divide(x, unit) * unit; }

// In a tiled matrix, `first` is the first row of a tile of `tile` rows.
RowsView view_of(const Tensor& matrix, int64_t first, int64_t rows, int64_t first_k, int64_t k, int64_t tile = 1) {
  const int64_t before = matrix.tiled ? first_k * tile : first_k;
  return {.data = matrix.rows(first, rows).data + static_cast<size_t>(before) * size_bytes(matrix.dtype),
          .type = matrix.dtype,
          .stride = static_cast<size_t>(matrix.dim(1)),
          .rows = static_cast<size_t>(rows),
          .k = static_cast<size_t>(k),
          .tiled = matrix.tiled};
}

Fetch fetch_of(const RowsView& view, bool to_write) {
  return {static_cast<const std::byte*>(view.data), (view.tiled ? view.k : view.stride) * size_bytes(view.type),
          view.rows, view.k * size_bytes(view.type), to_write};
}

}  // namespace

struct CpuMatmul::Product {
  Tensor a, w;  // [rows, k], [matrices, n, k]
  CpuProductOutput output;
  const std::byte* packed = nullptr;  // the result of pack_rows
  int64_t n() const { return w.dim(1); }
  int64_t k() const { return w.dim(2); }
  // With fp8, the scaled values are multiplied, in fp32: those of a are computed first, those of a tile of w when it is
  // packed.
  DType w_type() const { return w.dtype == DType::kF8 ? DType::kF32 : w.dtype; }
};

namespace {

// Writes the scaled values of the rows from `row` on and the columns from `first` on to `values`, in the size of
// `part`.
RowsView scaled_tile_of(const Tensor& matrix, int64_t row, int64_t first, const RowsView& part, float* values) {
  const auto rows = static_cast<int64_t>(part.rows), columns = static_cast<int64_t>(part.k);
  for (int64_t i = 0; i < rows; ++i) scale_elements(matrix, row + i, first, columns, values + i * columns);
  return view_of(Tensor(values, DType::kF32, {rows, columns}), 0, rows, 0, columns);
}

}  // namespace

// Up to this number of tiles of rows, rows of w are multiplied as they are stored.
int64_t CpuMatmul::few_tiles(const Product& product) const {
  if (product.w.dtype == DType::kF8) return 0;
  return static_cast<int64_t>(product.w.tiled ? simd_.matmul->few_tiles_tiled : simd_.matmul->few_tiles);
}
// The number of tiles of columns that the kernel then multiplies at once.
int64_t CpuMatmul::tiles_at_once(const Product& product, int64_t rows) const {
  return product.w.tiled ? static_cast<int64_t>(simd_.matmul->few_columns(static_cast<size_t>(rows))) : 1;
}

// Adds blocks for the rows [first, last) of a, which are multiplied by matrix `matrix`: at least `wanted` blocks, if
// there are enough rows.
void CpuMatmul::cut_rows(int64_t matrix, int64_t first, int64_t last, int64_t wanted) {
  const auto tile = static_cast<int64_t>(simd_.matmul->tile_rows);
  const int64_t blocks =
      std::max(ceil_divide(last - first, kMaxBlockRows), std::min(wanted, (last - first) / kMinBlockRows));
  const int64_t most = blocks == 0 ? tile : round_up(ceil_divide(last - first, blocks), tile);
  for (int64_t row = first; row < last; row += most) {
    const int64_t first_tile = row_blocks_.empty() ? 0 : row_blocks_.back().end_tile, rows = std::min(most, last - row);
    row_blocks_.push_back({matrix, row, rows, first_tile, first_tile + ceil_divide(rows, tile)});
  }
}

// The fewest columns of a work item: whole tiles, and whole blocks of gate and up rows.
int64_t CpuMatmul::min_item_columns() const {
  return std::max(static_cast<int64_t>(simd_.matmul->tile_columns), kGateUpColumns);
}

// The number of blocks into which rows are cut if they are multiplied by a matrix with n columns of output, so that
// each thread has kItemsPerThread items.
int64_t CpuMatmul::wanted_blocks(int64_t n) const {
  const int64_t items = std::max<int64_t>(1, ceil_divide(n, min_item_columns()));
  return ceil_divide(kItemsPerThread * static_cast<int64_t>(pool_.threads()), items);
}

// Packs all tiles of rows for each block of k: [blocks of k, tiles].
const std::byte* CpuMatmul::pack_rows(const Tensor& a, DType w_type) {
  const MatmulKernel& kernel = *simd_.matmul;
  const auto tile_rows = static_cast<int64_t>(kernel.tile_rows), block_k = static_cast<int64_t>(kernel.block_k);
  const int64_t tiles = row_blocks_.back().end_tile, k = a.dim(1), k_blocks = ceil_divide(k, block_k);
  const size_t tile_bytes = kernel.a_bytes(a.dtype, w_type);
  auto* packed = packed_.reserve<std::byte>(static_cast<size_t>(tiles * k_blocks) * tile_bytes);
  for_each_row(pool_, tiles * k_blocks, a.dim(0) * std::min(k, block_k) / tiles, [&](int64_t item) {
    const int64_t tile = item / k_blocks, b = item % k_blocks;
    const RowBlock& block = *std::partition_point(row_blocks_.begin(), row_blocks_.end(),
                                                  [&](const RowBlock& other) { return other.end_tile <= tile; });
    const int64_t offset = (tile - block.first_tile) * tile_rows, rows = std::min(tile_rows, block.rows - offset);
    kernel.pack_a(view_of(a, block.first_row + offset, rows, b * block_k, std::min(block_k, k - b * block_k)), w_type,
                  packed + static_cast<size_t>(b * tiles + tile) * tile_bytes);
  });
  return packed;
}

// Multiplies one block of rows with the columns [first_column, end_column). `w_tile` and `sums` are the thread's own
// memory for a tile of w and for the sums [tiles of columns, rows in whole tiles, tile_columns]. The thread will
// probably read the rows of w from `next_w` on next.
void CpuMatmul::multiply_group(const Product& product, const RowBlock& block, int64_t first_column, int64_t end_column,
                               std::byte* w_tile, float* sums, const std::byte* next_w) const {
  const MatmulKernel& kernel = *simd_.matmul;
  const auto tile_rows = static_cast<int64_t>(kernel.tile_rows),
             tile_columns = static_cast<int64_t>(kernel.tile_columns);
  const auto block_k = static_cast<int64_t>(kernel.block_k);
  const int64_t k = product.k(), k_blocks = std::max<int64_t>(1, ceil_divide(k, block_k));
  const int64_t column_tiles = ceil_divide(end_column - first_column, tile_columns);
  const int64_t tiles = row_blocks_.back().end_tile, block_tiles = block.end_tile - block.first_tile;
  const int64_t tile_sums = block_tiles * tile_rows * tile_columns;
  const size_t a_bytes = kernel.a_bytes(product.a.dtype, product.w_type());
  const Tensor w = product.w.at(block.matrix);
  const bool scaled = w.dtype == DType::kF8;
  auto* scaled_tile = reinterpret_cast<float*>(w_tile + kernel.w_bytes(product.a.dtype, product.w_type()));
  // With many rows, all tiles of w are multiplied for one block of k, whose packed rows stay in the cache. With few
  // rows, all of k is multiplied for one tile of w, whose rows are then read from end to end.
  const bool few = block_tiles * k_blocks * static_cast<int64_t>(a_bytes) <= kFewBytes;
  struct Step {
    int64_t b, tile;  // block of k, tile of w
  };
  const auto step_of = [&](int64_t i) -> Step {
    return few ? Step{i % k_blocks, i / k_blocks} : Step{i / column_tiles, i % column_tiles};
  };
  const auto column_of = [&](int64_t tile) { return first_column + tile * tile_columns; };
  const auto width_of = [&](int64_t tile) { return std::min(tile_columns, end_column - column_of(tile)); };
  const auto w_of = [&](Step step) {
    return view_of(w, column_of(step.tile), width_of(step.tile), step.b * block_k,
                   std::min(block_k, k - step.b * block_k), tile_columns);
  };
  const bool straight = block_tiles <= few_tiles(product) && k > 0;
  const int64_t at_once = tiles_at_once(product, block.rows);
  for (int64_t tile = 0; straight && tile < column_tiles; tile += at_once) {
    const int64_t count = std::min(at_once, column_tiles - tile);
    const int64_t width = std::min(count * tile_columns, end_column - column_of(tile));
    const std::byte* next = tile + count < column_tiles ? w.rows(column_of(tile + count), 1).data : next_w;
    for (int64_t row_tile = 0; row_tile < block_tiles; ++row_tile) {
      const int64_t row = row_tile * tile_rows;
      kernel.multiply_few(
          {.a = product.packed + static_cast<size_t>(block.first_tile + row_tile) * a_bytes,
           .a_stride = static_cast<size_t>(tiles) * a_bytes,
           .a_rows = view_of(product.a, block.first_row + row, std::min(tile_rows, block.rows - row), 0, k),
           .w = view_of(w, column_of(tile), width, 0, k),
           .tiles = static_cast<size_t>(count),
           .next_w = next,
           .sums = sums + tile * tile_sums + row * tile_columns,
           .sums_stride = static_cast<size_t>(tile_sums)});
    }
  }
  const int64_t steps = straight ? 0 : k_blocks * column_tiles;
  const bool packed = w.tiled && kernel.tile_is_packed(product.a.dtype, w.dtype);
  for (int64_t i = 0; i < steps; ++i) {
    const auto [b, tile] = step_of(i);
    RowsView w_rows = w_of({b, tile});
    if (scaled) w_rows = scaled_tile_of(w, column_of(tile), b * block_k, w_rows, scaled_tile);
    if (!packed) kernel.pack_w(w_rows, product.a.dtype, w_tile);
    PackedProduct part;
    part.a = product.packed + static_cast<size_t>(b * tiles + block.first_tile) * a_bytes;
    part.w = packed ? static_cast<const std::byte*>(w_rows.data) : w_tile;
    part.a_type = product.a.dtype;
    part.w_type = product.w_type();
    part.rows = static_cast<size_t>(block.rows);
    part.k = static_cast<size_t>(std::min(block_k, k - b * block_k));
    part.a_rows = view_of(product.a, block.first_row, block.rows, b * block_k, std::min(block_k, k - b * block_k));
    part.w_rows = w_rows;
    part.sums = sums + tile * tile_sums;
    part.first = b == 0;
    // With few rows the reads are sequential, and the processor prefetches without help.
    if (i + 1 < steps && !few) part.next_w = fetch_of(w_of(step_of(i + 1)), false);
    const int64_t share = product.output.swiglu ? 2 : 1;
    if (b + 1 == k_blocks)
      part.out = fetch_of(
          view_of(product.output.out, block.first_row, block.rows, column_of(tile) / share, width_of(tile) / share),
          true);
    kernel.multiply(part);
  }
  for (int64_t r = 0; r < block.rows; ++r)
    product.output.write(simd_, block.first_row + r, first_column, end_column - first_column, sums + r * tile_columns,
                         tile_sums);
}

// Multiplies rows each of which is a separate block, as in a step of one sequence. There, threads outnumber tiles of
// columns so far that tiles over all of k would end at different times. A work item is some blocks of k of a group of
// columns, whose sums are kept apart. The thread that ends the last item of a group adds them in the order of k.
void CpuMatmul::multiply_single_rows(const Product& product, int64_t group_columns, int64_t item_blocks) {
  const MatmulKernel& kernel = *simd_.matmul;
  const Tensor& w = product.w;
  const auto tile_columns = static_cast<int64_t>(kernel.tile_columns), block_k = static_cast<int64_t>(kernel.block_k);
  const int64_t n = product.n(), k = product.k(), k_blocks = ceil_divide(k, block_k);
  const int64_t column_groups = ceil_divide(n, group_columns), parts = ceil_divide(k_blocks, item_blocks);
  const int64_t groups = static_cast<int64_t>(row_blocks_.size()) * column_groups;
  const size_t a_bytes = kernel.a_bytes(product.a.dtype, w.dtype);
  const size_t a_stride = static_cast<size_t>(row_blocks_.back().end_tile) * a_bytes;
  // [groups, blocks of k, columns], and for each group the number of its parts that are done.
  const int64_t group_sums = k_blocks * group_columns;
  auto* all_sums = scratch_.reserve<float>(static_cast<size_t>(groups * (group_sums + 1)));
  auto* done = reinterpret_cast<uint32_t*>(all_sums + groups * group_sums);
  std::fill_n(done, groups, 0);

  struct ColumnGroup {
    const RowBlock& block;
    int64_t column, width;
  };
  const auto column_group = [&](int64_t group) -> ColumnGroup {
    const int64_t column = group % column_groups * group_columns;
    return {row_blocks_[static_cast<size_t>(group / column_groups)], column, std::min(group_columns, n - column)};
  };
  // `count` columns of a group, from its column c on, over block b of k.
  const auto w_of = [&](const ColumnGroup& at, int64_t c, int64_t count, int64_t b) {
    return view_of(w.at(at.block.matrix), at.column + c, count, b * block_k, std::min(block_k, k - b * block_k),
                   tile_columns);
  };
  const int64_t at_once = tiles_at_once(product, 1) * tile_columns;
  const auto items = static_cast<size_t>(groups * parts);
  pool_.parallel_for(items, [&](size_t item, size_t worker) {
    const int64_t group = static_cast<int64_t>(item) / parts, first = static_cast<int64_t>(item) % parts * item_blocks;
    const int64_t end = std::min(first + item_blocks, k_blocks);
    const ColumnGroup at = column_group(group);
    float* sums = all_sums + group * group_sums;
    const auto next = static_cast<int64_t>(pool_.next_item(item, items, worker));
    const void* next_w = w_of(column_group(next / parts), 0, 1, next % parts * item_blocks).data;
    for (int64_t b = first; b < end; ++b)
      for (int64_t c = 0; c < at.width; c += at_once) {
        const RowsView part = w_of(at, c, std::min(at_once, at.width - c), b);
        const bool more_columns = c + at_once < at.width;
        kernel.multiply_few(
            {.a = product.packed + static_cast<size_t>(b) * a_stride +
                  static_cast<size_t>(at.block.first_tile) * a_bytes,
             .a_stride = a_stride,
             .a_rows = view_of(product.a, at.block.first_row, 1, b * block_k, static_cast<int64_t>(part.k)),
             .w = part,
             .tiles = static_cast<size_t>(ceil_divide(static_cast<int64_t>(part.rows), tile_columns)),
             .next_w = more_columns  ? w_of(at, c + at_once, 1, b).data
                       : b + 1 < end ? w_of(at, 0, 1, b + 1).data
                                     : next_w,
             .sums = sums + b * group_columns + c,
             .sums_stride = static_cast<size_t>(tile_columns)});
      }
    if (std::atomic_ref(done[group]).fetch_add(1) + 1 < static_cast<uint32_t>(parts)) return;
    for (int64_t b = 1; b < k_blocks; ++b)
      for (int64_t c = 0; c < at.width; ++c) sums[c] += sums[b * group_columns + c];
    product.output.write(simd_, at.block.first_row, at.column, at.width, sums, tile_columns);
  });
}

// The scaled values of an fp8 matrix, valid until the next product.
Tensor CpuMatmul::scaled_rows(const Tensor& a) {
  const int64_t rows = a.dim(0), k = a.dim(1);
  const Tensor values(scaled_.reserve<float>(static_cast<size_t>(rows * k)), DType::kF32, {rows, k});
  for_each_row(pool_, rows, k, [&](int64_t row) { scale_elements(a, row, 0, k, values.as<float>() + row * k); });
  return values;
}

void CpuMatmul::multiply_blocks(Product product) {
  if (row_blocks_.empty() || product.n() == 0) return;
  const MatmulKernel& kernel = *simd_.matmul;
  const auto tile_columns = static_cast<int64_t>(kernel.tile_columns);
  const auto blocks = static_cast<int64_t>(row_blocks_.size()), threads = static_cast<int64_t>(pool_.threads());
  const int64_t n = product.n(), k_blocks = ceil_divide(product.k(), static_cast<int64_t>(kernel.block_k));
  int64_t max_tiles = 0, max_rows = 0;
  for (const RowBlock& block : row_blocks_) {
    max_tiles = std::max(max_tiles, block.end_tile - block.first_tile);
    max_rows = std::max(max_rows, block.rows);
  }
  if (product.a.dtype == DType::kF8) product.a = scaled_rows(product.a);
  product.packed = pack_rows(product.a, product.w_type());
  const bool few = max_tiles <= few_tiles(product);
  const int64_t unit = min_item_columns(), wanted = kItemsPerThreadFew * threads;
  if (few && max_rows == 1 && k_blocks > 1) {
    const int64_t columns = round_up(tile_columns * tiles_at_once(product, 1), unit);
    const int64_t groups = blocks * ceil_divide(n, columns);
    if (groups < wanted)
      return multiply_single_rows(product, columns,
                                  ceil_divide(k_blocks, std::min(k_blocks, ceil_divide(wanted, groups))));
  }
  // With many rows, a thread takes several items at once, for which a block of k of the rows stays in its cache. With
  // few rows, it takes one item at a time, and prefetches the weights of the next.
  const int64_t item_columns =
      few ? round_up(std::clamp<int64_t>(n * blocks / wanted, 1, kMaxGroupColumns), unit) : unit;
  const int64_t most = few ? 1 : kMaxGroupColumns / unit;
  const auto block_items = static_cast<size_t>(ceil_divide(n, item_columns));

  const size_t scaled_bytes =
      product.w.dtype == DType::kF8 ? static_cast<size_t>(tile_columns) * kernel.block_k * sizeof(float) : 0;
  const size_t w_bytes = kernel.w_bytes(product.a.dtype, product.w_type()) + scaled_bytes;
  const size_t sums_bytes = static_cast<size_t>(max_tiles) * kernel.tile_rows *
                            static_cast<size_t>(round_up(most * item_columns, tile_columns)) * sizeof(float);
  auto* scratch = scratch_.reserve<std::byte>(pool_.threads() * (w_bytes + sums_bytes));
  const size_t items = static_cast<size_t>(blocks) * block_items;
  const auto block_of = [&](size_t item) -> const RowBlock& { return row_blocks_[item / block_items]; };
  const auto column_of = [&](size_t item) { return static_cast<int64_t>(item % block_items) * item_columns; };
  pool_.parallel_for_ranges(items, static_cast<size_t>(most), [&](size_t first, size_t end, size_t worker) {
    std::byte* w_tile = scratch + worker * (w_bytes + sums_bytes);
    for (size_t item = first, next; item < end; item = next) {
      next = std::min(end, (item / block_items + 1) * block_items);
      const size_t soon = next < end ? next : pool_.next_item(end - 1, items, worker);
      multiply_group(product, block_of(item), column_of(item), std::min(n, column_of(next - 1) + item_columns), w_tile,
                     reinterpret_cast<float*>(w_tile + w_bytes),
                     product.w.at(block_of(soon).matrix).rows(column_of(soon), 1).data);
    }
  });
}

Tensor CpuMatmul::prepacked(const Tensor& w) const {
  const MatmulKernel& kernel = *simd_.matmul;
  const auto tile = static_cast<int64_t>(kernel.tile_columns);
  Tensor same = w;
  same.tiled =
      is_float(w) && kernel.has_tiles(w.dtype) && w.dim(w.rank - 2) % tile == 0 && w.dim(w.rank - 1) % tile == 0;
  return same;
}

void CpuMatmul::prepack(const Tensor& w) {
  const auto tile = static_cast<int64_t>(simd_.matmul->tile_columns), k = w.dim(w.rank - 1);
  const size_t tile_bytes = static_cast<size_t>(tile * k) * size_bytes(w.dtype);
  auto* scratch = scratch_.reserve<std::byte>(pool_.threads() * tile_bytes);
  pool_.parallel_for(w.bytes() / tile_bytes, [&](size_t item, size_t worker) {
    std::byte *target = w.data + item * tile_bytes, *rows = scratch + worker * tile_bytes;
    std::memcpy(rows, target, tile_bytes);
    simd_.matmul->tile_w(view_of(Tensor(rows, w.dtype, {tile, k}), 0, tile, 0, k), target);
  });
}

void CpuMatmul::matmul(const Tensor& a, const Tensor& w, const Tensor& bias, const Tensor& out, Write write) {
  const int64_t m = a.dim(0), n = w.dim(0);
  expect(a.rank == 2 && w.rank == 2 && out.rank == 2 && a.dim(1) == w.dim(1) && out.dim(0) == m && out.dim(1) == n &&
             (!bias || bias.numel() == n) && are_operands(a, w),
         "matmul: shapes");
  row_blocks_.clear();
  cut_rows(0, 0, m, wanted_blocks(n));
  const bool converted = bias.dtype != DType::kF32;
  float* biases = converted ? bias_.reserve<float>(static_cast<size_t>(n)) : bias.as<float>();
  if (converted) convert(bias.dtype, bias.data, DType::kF32, biases, static_cast<size_t>(n));
  multiply_blocks(
      {.a = a, .w = w.reshape({1, n, w.dim(1)}), .output = {.out = out, .bias = biases, .add = write == Write::kAdd}});
}

void CpuMatmul::matmul_swiglu(const Tensor& a, const Tensor& w, const Tensor& out) {
  const int64_t m = a.dim(0), n = w.dim(0);
  expect(a.rank == 2 && w.rank == 2 && out.rank == 2 && a.dim(1) == w.dim(1) && out.dim(0) == m &&
             2 * out.dim(1) == n && n % kGateUpColumns == 0 && (out.dtype == a.dtype || a.dtype == DType::kF8) &&
             are_operands(a, w),
         "matmul_swiglu: shapes");
  row_blocks_.clear();
  cut_rows(0, 0, m, wanted_blocks(n));
  multiply_blocks({.a = a, .w = w.reshape({1, n, w.dim(1)}), .output = {.out = out, .swiglu = true}});
}

// Cuts the rows of each expert into blocks, which are multiplied by the matrix of that expert.
void CpuMatmul::cut_experts(const Tensor& a, const Tensor& w, const Tensor& expert_offsets) {
  const auto* offsets = expert_offsets.as<const int32_t>();
  row_blocks_.clear();
  for (int64_t expert = 0; expert < w.dim(0); ++expert) {
    const int64_t first = offsets[expert], last = offsets[expert + 1];
    expect(first >= 0 && first <= last && last <= a.dim(0), "expert_offsets");
    cut_rows(expert, first, last, 1);
  }
}

void CpuMatmul::grouped_matmul(const Tensor& a, const Tensor& w, const Tensor& expert_offsets, const Tensor& out) {
  expect(a.rank == 2 && w.rank == 3 && out.rank == 2 && a.dim(1) == w.dim(2) && out.dim(0) == a.dim(0) &&
             out.dim(1) == w.dim(1) && expert_offsets.numel() == w.dim(0) + 1 && are_operands(a, w),
         "grouped_matmul: shapes");
  cut_experts(a, w, expert_offsets);
  multiply_blocks({.a = a, .w = w, .output = {.out = out}});
}

void CpuMatmul::grouped_swiglu(const Tensor& a, const Tensor& w, const Tensor& expert_offsets, const Tensor& out) {
  expect(a.rank == 2 && w.rank == 3 && out.rank == 2 && a.dim(1) == w.dim(2) && out.dim(0) == a.dim(0) &&
             2 * out.dim(1) == w.dim(1) && w.dim(1) % kGateUpColumns == 0 &&
             (out.dtype == a.dtype || a.dtype == DType::kF8) && expert_offsets.numel() == w.dim(0) + 1 &&
             are_operands(a, w),
         "grouped_swiglu: shapes");
  cut_experts(a, w, expert_offsets);
  multiply_blocks({.a = a, .w = w, .output = {.out = out, .swiglu = true}});
}

}  // namespace lfm2
