// A block of kRowThreads, or several blocks that share its workers, passes once over a row of logits. It finds the
// row's log-sum-exp, with the same bits in every kernel, and its largest entry.
#pragma once

#include <cmath>

#include "kernels/cuda/common/device_types.cuh"
#include "kernels/sampling.h"

namespace lfm2 {

constexpr int kRowThreads = 512, kRowWarps = kRowThreads / 32;

// A number that orders the entries of a row by their logits, and is unique within a row: of equal logits, that with the
// lower id has the larger number.
__device__ inline uint64_t order_of(const float* logits, int id) {
  return (static_cast<uint64_t>(sampling_key(logits[id])) << 32) | ~static_cast<uint32_t>(id);
}

// What one of a row's kRowThreads workers, usually a thread, finds in its entries, which are kRowThreads apart: the
// largest logit, the sum of exp(logit - largest), and the best entry.
struct Survey {
  float largest = -INFINITY, sum = 0;
  uint64_t best = 0;  // order_of(entry); 0 if the worker has no entry
};

// Processes the entries of `worker` in runs of kRun, and rescales the sum once for each run. kSets sets of registers
// alternate: one is processed while the others are loaded. A NaN gets into the sum and makes every result NaN.
template <int kSets = 2>
__device__ inline Survey survey(const float* logits, int vocab, int worker) {
  constexpr int kRun = 8, kStep = kRun * kRowThreads;
  Survey result;
  float best = -INFINITY, sets[kSets][kRun];
  int best_id = worker;
  const auto load = [&](int first, float(&run)[kRun]) {
#pragma unroll
    for (int i = 0; i < kRun; ++i)
      run[i] = first + i * kRowThreads < vocab ? logits[first + i * kRowThreads] : -INFINITY;
  };
  const auto take = [&](int first, const float(&run)[kRun]) {
    float largest = result.largest;
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      largest = fmaxf(largest, run[i]);
      if (run[i] > best) {
        best = run[i];
        best_id = first + i * kRowThreads;
      }
    }
    const float base = largest == -INFINITY ? 0.0f : largest;
    result.sum *= expf(result.largest - base);
#pragma unroll
    for (int i = 0; i < kRun; ++i) result.sum += expf(run[i] - base);
    result.largest = largest;
  };
#pragma unroll
  for (int a = 0; a < kSets; ++a) load(worker + a * kStep, sets[a]);
  for (int first = worker; first < vocab; first += kSets * kStep) {
#pragma unroll
    for (int a = 0; a < kSets; ++a) {
      if (first + a * kStep >= vocab) break;
      take(first + a * kStep, sets[a]);
      load(first + (a + kSets) * kStep, sets[a]);
    }
  }
  if (best_id < vocab) result.best = order_of(logits, best_id);
  return result;
}

// log(sum of exp) over the row, added in an order that depends on the threads' numbers alone.
__device__ inline double log_sum_of(const Survey& mine) {
  __shared__ float warp_largest[kRowWarps];
  __shared__ double warp_sums[kRowWarps];
  float largest = mine.largest;
  for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
  if (threadIdx.x % 32 == 0) warp_largest[threadIdx.x / 32] = largest;
  __syncthreads();
  for (int warp = 0; warp < kRowWarps; ++warp) largest = fmaxf(largest, warp_largest[warp]);
  // If the largest value is infinite, this gives NaN, which is the log-softmax of such a row.
  double sum = static_cast<double>(mine.sum) * static_cast<double>(expf(mine.largest - largest));
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
  for (int warp = 0; warp < kRowWarps; ++warp) sum += warp_sums[warp];
  return static_cast<double>(largest) + log(sum);
}

// The largest of the workers' best entries.
__device__ inline uint64_t best_of(uint64_t best) {
  __shared__ uint64_t warps[kRowWarps];
  for (int step = 16; step > 0; step /= 2) best = max(best, __shfl_xor_sync(kAllLanes, best, step));
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
  __syncthreads();
  for (int warp = 0; warp < kRowWarps; ++warp) best = max(best, warps[warp]);
  return best;
}

__device__ inline float log_prob(uint32_t key, double log_sum) {
  return static_cast<float>(static_cast<double>(sampling_logit(key)) - log_sum);
}

}  // namespace lfm2
