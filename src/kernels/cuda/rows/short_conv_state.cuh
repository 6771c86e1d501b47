// What every kernel with a short convolution in it shares: a token's position, the states before and after the token,
// and the order of the sum over three taps.
#pragma once

#include "kernels/cuda/common/device_types.cuh"
#include "kernels/cuda/rows/launch.h"

namespace lfm2::conv {

// The position of a token in its sample, and in its sequence's part of this batch. The inputs before that part are in
// the cache.
struct TokenCoord {
  int position;  // its position in its sample
  int here;      // number of tokens of its text before it in the batch, in the rows before its own
  int sequence;  // only set with a cache
  bool last;     // the token is its sequence's last one in the batch; only set with a cache
};
// The number of rows before a sequence's first one that continue the same text.
__device__ inline int rows_before(const CachedConvArgs& cache, int sequence) {
  return cache.here == nullptr ? 0 : cache.here[sequence];
}
template <bool cached>
__device__ TokenCoord place_of(const ShortConvArgs& args, const CachedConvArgs& cache, int64_t token) {
  const int position = args.positions[token];
  if constexpr (!cached) return {position, position, 0, false};
  const int sequence = cache.sequence_of[token];
  return {position, static_cast<int>(token) - cache.offsets[sequence] + rows_before(cache, sequence), sequence,
          token + 1 == cache.offsets[sequence + 1]};
}
// The address of entry i of the state in a row, from channel c on. Entry 0 is the oldest.
__device__ inline float* state_at(const ShortConvArgs& args, const CachedConvArgs& cache, int64_t row, int64_t i,
                                  int64_t c) {
  return cache.states + (row * (args.taps - 1) + i) * args.hidden + c;
}
// The row of the state that a sequence has before the batch.
__device__ inline int64_t row_before(const CachedConvArgs& cache, int sequence) { return cache.rows[2 * sequence]; }
// Calls keep(row) for each row to which the state after a token is written. If the token is the last one of its
// sequence, that is the row of the sequence; if it is the last one of its page, also the row of the page.
template <class F>
__device__ void for_each_row_behind(const CachedConvArgs& cache, const TokenCoord& place, F&& keep) {
  if (place.last) keep(cache.rows[2 * place.sequence + 1]);
  if (cache.page_size != 0 && (place.position + 1) % cache.page_size == 0)
    keep(cache.first_page_row +
         cache.page_table[static_cast<int64_t>(place.sequence) * cache.max_pages + place.position / cache.page_size]);
}

// The convolution with three taps of one channel: adds to `sum`, which is the bias at first, the oldest input first.
// Inputs from before the sample may be anything.
__device__ inline float convolve3(int position, const float (&taps)[3], const float (&inputs)[3], float sum) {
  if (position >= 2) sum = fmaf(taps[0], inputs[0], sum);
  if (position >= 1) sum = fmaf(taps[1], inputs[1], sum);
  return fmaf(taps[2], inputs[2], sum);
}

}  // namespace lfm2::conv
