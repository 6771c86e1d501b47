// Tensor maps describe a matrix in GPU memory to TMA, the copy engine of Hopper and later GPUs. The host makes them for
// each launch and passes them to the kernel by value (const __grid_constant__ CUtensorMap).
#pragma once

#include <cuda.h>

#include <cstdint>

#include "base/dtype.h"

namespace lfm2 {

// A map whose boxes have box_rows <= 256 rows and box_columns columns, together 128 bytes of a row. The matrix is
// row-major and on 16 bytes, and its rows are multiples of 16 bytes. In shared memory, on 1024 bytes, a box is
// swizzled: chunk c (16 bytes) of row r lies at place c ^ (r % 8).
//   row 0:  0 1 2 3 4 5 6 7
//   row 1:  1 0 3 2 5 4 7 6      the chunks in the order in which they lie
//   row 2:  2 3 0 1 6 7 4 5
CUtensorMap matrix_map(const void* data, DType dtype, int64_t rows, int64_t columns, int box_rows, int box_columns);

// The same for several matrices, contiguous in memory. A box lies within one of them.
CUtensorMap matrices_map(const void* data, DType dtype, int64_t matrices, int64_t rows, int64_t columns, int box_rows,
                         int box_columns);

// The same with the rows cut into pieces of box_columns columns. A box has up to box_pieces pieces of box_rows rows. In
// shared memory it lies piece by piece, each piece as above. Coordinates: column in a piece (0), row, piece, matrix. If
// box_columns does not divide the columns, the one piece is as long as the row, and box_pieces is 1.
CUtensorMap pieces_map(const void* data, DType dtype, int64_t matrices, int64_t rows, int64_t columns, int box_rows,
                       int box_columns, int box_pieces);

// A map over rows of 128 bytes of each head, with `head_bytes` from a head to the next and `row_bytes` from a row to
// the next. A box has box_heads heads of box_rows rows, row after row. Coordinates: column in a head (0), head, row.
CUtensorMap heads_map(const void* data, DType dtype, int64_t rows, int64_t heads, int64_t head_bytes, int64_t row_bytes,
                      int box_rows, int box_heads);

}  // namespace lfm2
