// target_log_probs: the log-softmax of each row at one given token, and whether it is the row's top-1. One block passes
// once over one row.
#include <cmath>

#include "kernels/cuda/sampling/launch.h"
#include "kernels/cuda/sampling/log_softmax.cuh"

namespace lfm2 {

namespace {

// - operands: all_logits [rows, vocab] fp32, targets [rows] int32; out log_probs [rows] fp32, is_greedy [rows] int32.
// - block: one row.
// - thread: entries of the row, kRowThreads apart; the first one writes.
// - alignment: any.
__global__ void __launch_bounds__(kRowThreads, 2)
    target_log_probs_kernel(const float* all_logits, int vocab, const int32_t* targets, float* log_probs,
                            int32_t* is_greedy) {
  const float* logits = all_logits + static_cast<int64_t>(blockIdx.x) * vocab;
  const int32_t target = targets[blockIdx.x];
  device_expect(target >= 0 && target < vocab);
  const Survey mine = survey(logits, vocab, static_cast<int>(threadIdx.x));
  const double log_sum = log_sum_of(mine);
  const uint64_t best = best_of(mine.best);
  if (threadIdx.x != 0) return;
  log_probs[blockIdx.x] = static_cast<float>(static_cast<double>(logits[target]) - log_sum);
  is_greedy[blockIdx.x] = order_of(logits, target) == best ? 1 : 0;
}

}  // namespace

void launch_target_log_probs(cudaStream_t stream, const float* logits, const int32_t* targets, int64_t rows,
                             int64_t vocab, float* log_probs, int32_t* is_greedy) {
  if (rows == 0) return;
  target_log_probs_kernel<<<static_cast<unsigned>(rows), kRowThreads, 0, stream>>>(logits, static_cast<int>(vocab),
                                                                                   targets, log_probs, is_greedy);
  check_launch("target_log_probs_kernel");
}

}  // namespace lfm2
