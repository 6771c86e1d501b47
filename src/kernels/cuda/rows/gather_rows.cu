// gather_rows: the rows of a matrix that an index array names, copied bit by bit.
#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/rows/launch.h"
#include "kernels/cuda/rows/row_types.cuh"

namespace lfm2 {

namespace {

constexpr int kRowWarps = 8, kRowWords = 8;

// - operands: x [x_rows, words], rows [count] int32, out [count, words], in words of 2 or 16 bytes: the larger one if
//   it divides a row and both matrices begin on it.
// - block: kRowWarps rows, one for each warp.
// - thread: every 32nd word of its warp's row, of which kRowWords are in flight at once.
// - alignment: that of a word.
template <class Word>
__global__ void __launch_bounds__(kRowWarps * 32)
    gather_rows_kernel(const Word* x, int64_t x_rows, const int32_t* rows, int64_t count, int64_t words, Word* out,
                       bool triggers_late) {
  if (!triggers_late) pdl_trigger();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / 32;
  pdl_wait();
  if (triggers_late) pdl_trigger();
  if (i >= count) return;
  const int64_t row = rows[i];
  device_expect(row >= 0 && row < x_rows);
  for (int64_t first = threadIdx.x % 32; first < words; first += 32 * kRowWords) {
    Word flying[kRowWords];
#pragma unroll
    for (int k = 0; k < kRowWords; ++k)
      if (first + 32 * k < words) flying[k] = x[row * words + first + 32 * k];
#pragma unroll
    for (int k = 0; k < kRowWords; ++k)
      if (first + 32 * k < words) out[i * words + first + 32 * k] = flying[k];
  }
}

}  // namespace

void launch_gather_rows(cudaStream_t stream, const void* x, int64_t x_rows, const int32_t* rows, int64_t count,
                        int64_t row_bytes, void* out, bool triggers_late) {
  if (count == 0 || row_bytes == 0) return;
  with_row_word(x, out, row_bytes, [&](auto word) {
    using Word = decltype(word);
    launch_dependent("gather_rows_kernel", gather_rows_kernel<Word>, {ceil_divide(count, kRowWarps), kRowWarps * 32},
                     stream, static_cast<const Word*>(x), x_rows, rows, count,
                     row_bytes / static_cast<int64_t>(sizeof(Word)), static_cast<Word*>(out), triggers_late);
  });
}

}  // namespace lfm2
