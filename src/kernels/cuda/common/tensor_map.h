// Tensor maps, which tell the copy engine of Hopper and later GPUs what it must know of a matrix in GPU memory. They
// are made on the host for each launch and passed to the kernel by value (const __grid_constant__ CUtensorMap).
#pragma once

#include <cuda.h>

#include <cstdint>

#include "base/dtype.h"

namespace lfm2 {

// A map whose boxes have box_rows <= 256 rows and box_columns columns, together 128 bytes of a row. The matrix is
// row-major and on 16 bytes, and its rows are multiples of 16 bytes. In shared memory, on 1024 bytes, chunk c (16
// bytes) of a box's row r lies at place c ^ (r % 8).
CUtensorMap matrix_map(const void* data, DType dtype, int64_t rows, int64_t columns, int box_rows, int box_columns);

// The same for several matrices, one behind the other. A box lies within one of them.
CUtensorMap matrices_map(const void* data, DType dtype, int64_t matrices, int64_t rows, int64_t columns, int box_rows,
                         int box_columns);

// The same with the rows cut into pieces of box_columns columns: a box takes up to box_pieces pieces of box_rows rows,
// which lie piece by piece in shared memory, each as above. Coordinates: column in a piece (0), row, piece, matrix.
// Where box_columns does not divide the columns there is one piece, as long as the row, and box_pieces is 1.
CUtensorMap pieces_map(const void* data, DType dtype, int64_t matrices, int64_t rows, int64_t columns, int box_rows,
                       int box_columns, int box_pieces);

// A map over rows of heads of 128 bytes, with `row_bytes` from a row to the next: a box takes box_heads heads of
// box_rows rows, one row behind the other. Coordinates: column in a head (0), head, row.
CUtensorMap heads_map(const void* data, DType dtype, int64_t rows, int64_t heads, int64_t row_bytes, int box_rows,
                      int box_heads);

}  // namespace lfm2
