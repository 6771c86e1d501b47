// scatter_rows: copies each row of a matrix, bit by bit, to the rows that are named for it. If the rows of all
// assignments of tokens to experts are many megabytes, this reads a row once, whereas gather_rows reads it for each
// use.
#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/rows/launch.h"
#include "kernels/cuda/rows/row_types.cuh"

namespace lfm2 {

namespace {

constexpr int kRowWarps = 8, kRowWords = 8;

// - operands: x [count, words], targets [count, copies] int32, out [count copies, words], in words of 2 or 16 bytes:
//   the larger one if it divides a row and both matrices begin on it; scales of the rows, or none.
// - block: kRowWarps rows of x, one for each warp.
// - thread: every 32nd word of its warp's row, of which kRowWords are in flight at once.
// - alignment: that of a word.
template <class Word>
__global__ void __launch_bounds__(kRowWarps * 32)
    scatter_rows_kernel(const Word* x, const int32_t* targets, int64_t count, int copies, int64_t words, Word* out,
                        CopiedScales scales) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / 32;
  pdl_wait();
  pdl_trigger();
  if (i >= count) return;
  for (int group = threadIdx.x % 32; group < scales.groups; group += 32)
    for (int copy = 0; copy < copies; ++copy)
      scales.to[group * scales.to_stride + targets[i * copies + copy]] = scales.from[group * scales.from_stride + i];
  for (int64_t first = threadIdx.x % 32; first < words; first += 32 * kRowWords) {
    Word flying[kRowWords];
#pragma unroll
    for (int k = 0; k < kRowWords; ++k)
      if (first + 32 * k < words) flying[k] = x[i * words + first + 32 * k];
    for (int copy = 0; copy < copies; ++copy) {
      const int64_t row = targets[i * copies + copy];
      device_expect(row >= 0 && row < count * copies);
#pragma unroll
      for (int k = 0; k < kRowWords; ++k)
        if (first + 32 * k < words) out[row * words + first + 32 * k] = flying[k];
    }
  }
}

}  // namespace

Visible launch_scatter_rows(cudaStream_t stream, const void* x, const int32_t* targets, int64_t count, int copies,
                            int64_t row_bytes, void* out, const CopiedScales& scales) {
  if (count == 0 || copies == 0 || row_bytes == 0) return Visible::kBeforeWait;
  with_row_word(x, out, row_bytes, [&](auto word) {
    using Word = decltype(word);
    launch_dependent("scatter_rows_kernel", scatter_rows_kernel<Word>, {ceil_divide(count, kRowWarps), kRowWarps * 32},
                     stream, static_cast<const Word*>(x), targets, count, copies,
                     row_bytes / static_cast<int64_t>(sizeof(Word)), static_cast<Word*>(out), scales);
  });
  return Visible::kBeforeWait;
}

}  // namespace lfm2
