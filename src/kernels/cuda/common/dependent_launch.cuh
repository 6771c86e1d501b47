// Programmatic dependent launch (PDL): on sm_90 a kernel may start while earlier kernels of its stream still run. It is
// for kernels so short that starting them takes much of their time. These rules keep it correct:
// - A kernel calls pdl_trigger() first, except for those below. So the kernels of several launches are resident at the
//   same time, if they find room, and load their weights while earlier kernels compute.
// - Every thread calls pdl_wait() before it touches memory that another kernel writes, and before it writes any. No
//   thread returns without it. So the end of the previous kernel, for which pdl_wait() waits, is the end of all earlier
//   kernels.
// - Before the wait a kernel reads only what no kernel writes: weights, and what the host wrote, like positions. If
//   copy_words brings the latter, the next kernel starts only after copy_words has ended, with a __threadfence().
// - A few kernels call pdl_trigger() after their own wait: gather_rows (but not as embed), scatter_rows, grouped
//   products whose offsets are new, and skinny products with Share::triggers_late. Kernels after such a kernel may
//   read, before their own wait, what was written before it (Visible::kBeforeWait).
// - norm_route_swiglu calls pdl_trigger() after the routing, in one warp of each CTA. By then that warp of the first
//   CTA has written the routing, followed by a __threadfence(). So the routing is in L2 before a CTA of the next kernel
//   starts, and later kernels may read it before they wait. PTX promises less: that all is visible after the wait.
//   kShownRouting is the switch.
// - A kernel whose CTAs wait for each other through global memory (norm_route) does so after its own wait. It has no
//   more CTAs than the GPU has room for at once, beside kernels of other streams that wait themselves. So all its CTAs
//   start: earlier kernels end without it, and later kernels start only after all its CTAs have started. Processes that
//   share a GPU take turns; under MPS they do not, and two such kernels could wait forever.
// - An ordinary launch waits for all earlier work of the stream.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <iterator>
#include <type_traits>

#include "kernels/cuda/common/cuda_check.h"

namespace lfm2 {

__device__ inline void pdl_wait() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}
__device__ inline void pdl_trigger() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

struct LaunchShape {
  struct Extent : dim3 {
    Extent(int64_t count) : dim3(static_cast<unsigned>(count)) {}
    Extent(dim3 extent) : dim3(extent) {}
  };
  Extent blocks, threads;
  int shared_bytes = 0;
  unsigned cluster = 1;  // blocks that reach each other's shared memory; more than one only if has_clusters()
};

inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}
// Whether this file has code for this GPU's generation, sm_90 or later, and so clusters and PDL. PTX of an earlier
// generation, sm_80 or sm_90, has neither. Static, because files may be compiled for different architectures.
static inline bool has_clusters() {
  constexpr int kArchitectures[] = {__CUDA_ARCH_LIST__};
  const int major = device_attribute(cudaDevAttrComputeCapabilityMajor);
  return major >= 9 && std::any_of(std::begin(kArchitectures), std::end(kArchitectures),
                                   [=](int architecture) { return architecture / 100 == major; });
}

template <class... Parameters>
void launch_dependent(const char* name, void (*kernel)(Parameters...), const LaunchShape& shape, cudaStream_t stream,
                      std::type_identity_t<Parameters>... arguments) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {shape.cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = shape.blocks;
  config.blockDim = shape.threads;
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = !has_clusters() ? 0 : shape.cluster == 1 ? 1 : 2;
  static_cast<void>(cudaLaunchKernelEx(&config, kernel, arguments...));
  check_launch(name);  // also clears CUDA's last error
}

}  // namespace lfm2
