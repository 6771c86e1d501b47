// count_tokens: adds a batch's tokens to the counts that the penalties of their sequences need.
#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/common/device_types.cuh"
#include "kernels/cuda/sampling/launch.h"

namespace lfm2 {

namespace {

constexpr int kThreads = 256;

// - operands: ids, positions [tokens], offsets [sequences + 1], keepers [sequences, 2] int32; counts [slots, vocab].
// - block: one sequence.
// - thread: entries of the sequence's counts if it begins here, then tokens of the sequence, kThreads apart.
// - alignment: any.
__global__ void __launch_bounds__(kThreads) count_tokens_kernel(CountTokensArgs args) {
  pdl_trigger();
  const int sequence = static_cast<int>(blockIdx.x);
  const int slot = args.keepers[2 * sequence], prompt = args.keepers[2 * sequence + 1];
  const int first = args.offsets[sequence], end = args.offsets[sequence + 1];
  pdl_wait();
  if (slot < 0) return;
  int32_t* counts = args.counts + slot * args.vocab;
  if (first < end && args.positions[first] == 0) {
    for (int64_t id = threadIdx.x; id < args.vocab; id += kThreads) counts[id] = 0;
    __syncthreads();
  }
  for (int token = first + static_cast<int>(threadIdx.x); token < end; token += kThreads) {
    const int32_t id = args.ids[token];
    device_expect(id >= 0 && id < args.vocab);
    // Any order of the tokens gives the same counts.
    if (args.positions[token] < prompt)
      atomicOr(counts + id, kInPrompt);
    else
      atomicAdd(counts + id, kInText);
  }
}

}  // namespace

void launch_count_tokens(cudaStream_t stream, const CountTokensArgs& args) {
  if (args.sequences == 0) return;
  launch_dependent("count_tokens_kernel", count_tokens_kernel, {args.sequences, kThreads}, stream, args);
}

}  // namespace lfm2
