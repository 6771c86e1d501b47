// Programmatic dependent launch (PDL), for kernels so short that starting them takes much of their time: on sm_90 such
// a kernel may start while those before it in the stream still run. Rules keep that correct:
// - A kernel calls pdl_trigger() first of all, but for those below. So the kernels of several launches are there at
//   the same time, as far as they find room, and fetch their weights while the ones before them compute.
// - Every thread calls pdl_wait() before it touches memory that another kernel writes, and before it writes
//   any; none returns without it. So the end of the previous kernel, which the wait waits for, is that of all before.
// - Before the wait a kernel reads only what no kernel writes: weights, and what comes from the host, like positions.
//   Where copy_words brings that, it never lets the next kernel start before it has ended, with a __threadfence().
// - A few kernels call pdl_trigger() after their own wait: gather_rows (but not as embed), scatter_rows, products
//   of groups whose offsets are new, and skinny products as Share::triggers_late says. The kernels after such a
//   one may also read, before they wait, what was written before it (Visible::kBeforeWait).
// - norm_route_swiglu calls pdl_trigger() after the routing, with one warp of each block: that of the first block
//   has written it then, with a __threadfence() in between. So it is in L2 before a block of the next kernel starts,
//   and that kernel, and those after it, may also read it before they wait. PTX promises less, that all is visible
//   after the wait; kShownRouting is the switch.
// - A kernel whose blocks wait for one another through global memory (norm_route) does so after its own wait, with no
//   more blocks than the GPU has room for at once, beside kernels of other streams that wait for something themselves.
//   So its blocks all start: kernels before it end without it, and those after it start when all of its have started.
//   Processes that share a GPU take turns; under MPS, where they do not, two such kernels could wait forever.
// - An ordinary launch among them waits for everything before it.
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
  unsigned cluster = 1;  // blocks that reach each other's shared memory; more than one only where has_clusters()
};

inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}
// Whether this file's kernels run as code that was compiled for this GPU's generation, sm_90 or later. PTX of an
// earlier generation, sm_80 or sm_90, has none of it. Static, because files may be compiled for different
// architectures.
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
