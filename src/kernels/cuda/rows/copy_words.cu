// copy_words: copies a few words between memory of the device and memory of the host that the GPU reaches. A copy
// engine takes some microseconds to start and to report, during which no kernel of a decoding step runs.
#include <algorithm>

#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/rows/launch.h"

namespace lfm2 {

namespace {

constexpr int kThreads = 1024;

// - operands: from, to [words], each on the device or on the host.
// - block: the only one, which copies all words.
// - thread: words kThreads apart.
// - alignment: that of a word.
__global__ void __launch_bounds__(kThreads) copy_words_kernel(uint32_t* to, const uint32_t* from, int words) {
  pdl_wait();
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < words; i += kThreads) to[i] = from[i];
  __threadfence();  // the next kernel may read these before its own wait (dependent_launch.cuh)
}

}  // namespace

void launch_copy_words(cudaStream_t stream, void* to, const void* from, int words) {
  launch_dependent("copy_words_kernel", copy_words_kernel, {1, std::min(words, kThreads)}, stream,
                   static_cast<uint32_t*>(to), static_cast<const uint32_t*>(from), words);
}

}  // namespace lfm2
