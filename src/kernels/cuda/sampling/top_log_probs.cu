// top_log_probs: the log-softmax of a row's k largest entries, with one block for each row. For small k, the threads'
// own best entries bound the k-th largest from below, and few entries lie above that bound; otherwise radix selection
// finds the k-th largest.
#include <cmath>

#include "kernels/cuda/sampling/launch.h"
#include "kernels/cuda/sampling/log_softmax.cuh"

namespace lfm2 {

namespace {

constexpr int kDigitBits = 8, kDigits = 1 << kDigitBits;
constexpr int kSmallTop = 64;     // up to this k the bound is tried first
constexpr int kSharedTop = 1024;  // up to this many entries are sorted in shared memory, more of them in the outputs

__device__ bool small_top(const float* logits, int vocab, int k, uint64_t best, double log_sum, uint64_t* orders,
                          int32_t* out_ids, float* out_log_probs);
__device__ void any_top(const float* logits, int vocab, int k, double log_sum, uint32_t* shared_keys,
                        int32_t* shared_ids, int32_t* out_ids, float* out_log_probs);

// - operands: all_logits [rows, vocab] fp32; out all_ids [rows, k] int32, all_log_probs [rows, k] fp32.
// - block: one row.
// - thread: entries of the row, kRowThreads apart.
// - alignment: any.
__global__ void __launch_bounds__(kRowThreads, 2)
    top_log_probs_kernel(const float* all_logits, int vocab, int k, int32_t* all_ids, float* all_log_probs) {
  __shared__ uint64_t memory[kSharedTop];  // holds orders, or keys and ids
  const float* logits = all_logits + static_cast<int64_t>(blockIdx.x) * vocab;
  int32_t* ids = all_ids + static_cast<int64_t>(blockIdx.x) * k;
  float* log_probs = all_log_probs + static_cast<int64_t>(blockIdx.x) * k;
  const Survey mine = survey(logits, vocab, static_cast<int>(threadIdx.x));
  const double log_sum = log_sum_of(mine);
  if (k <= kSmallTop && small_top(logits, vocab, k, mine.best, log_sum, memory, ids, log_probs)) return;
  __syncthreads();  // before the memory is used again
  auto* keys = reinterpret_cast<uint32_t*>(memory);
  any_top(logits, vocab, k, log_sum, keys, reinterpret_cast<int32_t*>(keys + kSharedTop), ids, log_probs);
}

// The number of orders, among `count`, that are larger than `order`.
__device__ int rank_among(uint64_t order, const uint64_t* orders, int count) {
  int rank = 0;
#pragma unroll 4
  for (int i = 0; i < count; ++i) rank += orders[i] > order ? 1 : 0;
  return rank;
}

struct Selection {
  uint64_t prefix;  // the digits found so far, highest first
  int shift;        // the place, in bits, of the last digit found
  int remaining;    // entries still to be selected among those with this prefix
  bool all;         // the remaining entries are all that have this prefix
};

// Warp 0 finds the digit of the `remaining`-th largest entry.
__device__ void choose_digit(const int* histogram, Selection& selection) {
  constexpr int kEach = kDigits / 32;
  const int lane = threadIdx.x, top = kDigits - 1 - lane * kEach;  // a lane has kEach digits downwards from `top`
  int mine = 0;
  for (int i = 0; i < kEach; ++i) mine += histogram[top - i];
  const int all = upto(mine);
  int above = all - mine;
  const int remaining = selection.remaining;
  __syncwarp();
  if (above < remaining && all >= remaining) {
    int digit = top;
    while (above + histogram[digit] < remaining) above += histogram[digit--];
    selection.prefix |= static_cast<uint64_t>(digit) << selection.shift;
    selection.remaining = remaining - above;
    selection.all = histogram[digit] == selection.remaining;
  }
}

// Selects the k largest entries: afterwards exactly k entries have order_of(entry) >> shift at least prefix >> shift.
__device__ void select_top(const float* logits, int vocab, int k, int* histogram, Selection& selection) {
  if (threadIdx.x == 0) selection = {0, 64, k, k == vocab};
  __syncthreads();
  while (!selection.all) {
    for (int i = threadIdx.x; i < kDigits; i += kRowThreads) histogram[i] = 0;
    if (threadIdx.x == 0) selection.shift -= kDigitBits;
    __syncthreads();
    const int shift = selection.shift;
    const uint64_t prefix = selection.prefix;
    for (int id = threadIdx.x; id < vocab; id += kRowThreads) {
      const uint64_t order = order_of(logits, id);
      const bool same_prefix = shift + kDigitBits == 64 || (order ^ prefix) >> (shift + kDigitBits) == 0;
      if (same_prefix) atomicAdd(&histogram[(order >> shift) & (kDigits - 1)], 1);  // in any order
    }
    __syncthreads();
    if (threadIdx.x < 32) choose_digit(histogram, selection);
    __syncthreads();
  }
}

// Sorts the pairs by key, descending, and equal keys by id, ascending. The bitonic network's comparators all point the
// same way, so that any k works as if smaller entries followed.
__device__ void sort_pairs(uint32_t* keys, int32_t* ids, int k) {
  const auto compare = [&](int i, int j) {
    if (j <= i || j >= k) return;
    if (keys[i] > keys[j] || (keys[i] == keys[j] && ids[i] < ids[j])) return;
    const uint32_t key = keys[i];
    const int32_t id = ids[i];
    keys[i] = keys[j];
    ids[i] = ids[j];
    keys[j] = key;
    ids[j] = id;
  };
  for (int size = 2; size < 2 * k; size *= 2) {
    __syncthreads();
    for (int i = threadIdx.x; i < k; i += kRowThreads) compare(i, i ^ (size - 1));
    for (int step = size / 4; step > 0; step /= 2) {
      __syncthreads();
      for (int i = threadIdx.x; i < k; i += kRowThreads) compare(i, i ^ step);
    }
  }
  __syncthreads();
}

// Writes the k best entries for small k. Returns false if too many entries lie above the bound. `orders` has room for
// kSharedTop.
__device__ bool small_top(const float* logits, int vocab, int k, uint64_t best, double log_sum, uint64_t* orders,
                          int32_t* out_ids, float* out_log_probs) {
  constexpr int kGroup = 4,
                kGroups = kRowThreads / kGroup;  // threads in groups; the bound is the k-th of the groups' best
  static_assert(kGroups >= kSmallTop && kGroup * kSmallTop <= kSharedTop);
  __shared__ uint64_t bound;
  __shared__ int collected;
  for (int step = 1; step < kGroup; step *= 2) best = max(best, __shfl_xor_sync(kAllLanes, best, step));
  if (threadIdx.x % kGroup == 0) orders[threadIdx.x / kGroup] = best;
  if (threadIdx.x == 0) {
    collected = 0;
    bound = 0;  // stays 0 if fewer than k groups have entries; then all are collected
  }
  __syncthreads();
  // Orders are unique, except for the zeros of groups without entries.
  if (threadIdx.x < kGroups && orders[threadIdx.x] != 0 && rank_among(orders[threadIdx.x], orders, kGroups) == k - 1)
    bound = orders[threadIdx.x];
  __syncthreads();
  const float lowest = sampling_logit(static_cast<uint32_t>(bound >> 32));  // a NaN if there is no bound
#pragma unroll 8
  for (int id = threadIdx.x; id < vocab; id += kRowThreads) {
    if (logits[id] < lowest) continue;  // true for most entries, and never for a NaN
    const uint64_t order = order_of(logits, id);
    if (order < bound) continue;
    const int place = atomicAdd(&collected, 1);  // in any order, because they are ranked next
    if (place < kSharedTop) orders[place] = order;
  }
  __syncthreads();
  if (collected > kSharedTop) return false;
  for (int i = threadIdx.x; i < collected; i += kRowThreads) {
    const int rank = rank_among(orders[i], orders, collected);
    if (rank >= k) continue;
    out_ids[rank] = static_cast<int32_t>(~static_cast<uint32_t>(orders[i]));
    out_log_probs[rank] = log_prob(static_cast<uint32_t>(orders[i] >> 32), log_sum);
  }
  return true;
}

// Writes the k best entries for any k.
__device__ void any_top(const float* logits, int vocab, int k, double log_sum, uint32_t* shared_keys,
                        int32_t* shared_ids, int32_t* out_ids, float* out_log_probs) {
  __shared__ int histogram[kDigits], collected;
  __shared__ Selection selection;
  if (threadIdx.x == 0) collected = 0;
  select_top(logits, vocab, k, histogram, selection);
  uint32_t* keys = k <= kSharedTop ? shared_keys : reinterpret_cast<uint32_t*>(out_log_probs);
  int32_t* ids = k <= kSharedTop ? shared_ids : out_ids;
  const int shift = selection.shift;
  const uint64_t threshold = shift < 64 ? selection.prefix >> shift : 0;
  for (int id = threadIdx.x; id < vocab; id += kRowThreads) {
    const uint64_t order = order_of(logits, id);
    if (shift < 64 && order >> shift < threshold) continue;
    const int place = atomicAdd(&collected, 1);  // in any order, because they are sorted next
    keys[place] = static_cast<uint32_t>(order >> 32);
    ids[place] = id;
  }
  sort_pairs(keys, ids, k);
  for (int j = threadIdx.x; j < k; j += kRowThreads) {
    const uint32_t key = keys[j];  // keys may be the same memory as out_log_probs
    out_ids[j] = ids[j];
    out_log_probs[j] = log_prob(key, log_sum);
  }
}

}  // namespace

void launch_top_log_probs(cudaStream_t stream, const float* logits, int64_t rows, int64_t vocab, int64_t k,
                          int32_t* ids, float* log_probs) {
  if (rows == 0 || k == 0) return;
  top_log_probs_kernel<<<static_cast<unsigned>(rows), kRowThreads, 0, stream>>>(logits, static_cast<int>(vocab),
                                                                                static_cast<int>(k), ids, log_probs);
  check_launch("top_log_probs_kernel");
}

}  // namespace lfm2
