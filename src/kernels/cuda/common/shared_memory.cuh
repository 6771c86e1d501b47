// The dynamic shared memory of kernels, and how much a CTA may have.
#pragma once

#include <algorithm>

#include "kernels/cuda/common/cuda_check.h"

namespace lfm2 {

// What a CTA may have, static and dynamic, on every architecture that this file is compiled for: 163 KB on sm_80, 227
// KB from sm_90 on. A build for both uses the smaller layouts of an A100 on an H200, too.
constexpr int kMaxSharedBytes = (std::min({__CUDA_ARCH_LIST__}) >= 900 ? 227 : 163) * 1024;

// What a CTA may have without allow_shared_bytes().
constexpr int kSharedBytesUnasked = 48 * 1024;

// Allows launches of `kernel` with `used` bytes of dynamic shared memory, at most `bytes`. The test shared_memory reads
// kernel and bytes from the name of this function, and adds the kernel's static shared memory.
template <auto kernel, int bytes>
[[gnu::noinline]] void allow_shared_bytes(int used = bytes) {
  static_assert(bytes <= kMaxSharedBytes, "more shared memory than a block may have");
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, used));
}

}  // namespace lfm2
