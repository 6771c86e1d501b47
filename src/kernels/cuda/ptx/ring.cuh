// A ring of tile buffers between warps that load with Hopper's copy engine and warps that multiply. For
// gemm_wgmma_kernel.cuh and attention_wgmma.cu.
#pragma once

#include "kernels/cuda/ptx/hopper.cuh"

namespace lfm2 {

// A ring of tile buffers in shared memory with two barriers for each, and a warp's position in it.
template <int buffers, int bytes>
class Ring {
 public:
  __device__ Ring(uint32_t first_buffer, uint32_t barriers) : first_(first_buffer), full_(barriers) {}

  // A tile buffer is free after `readers` arrivals.
  __device__ void init_barriers(uint32_t readers) const {
    for (int i = 0; i < buffers; ++i) {
      barrier_init(full_ + i * 8, 1);
      barrier_init(full_ + (buffers + i) * 8, readers);
    }
  }
  __device__ int index() const { return index_; }
  __device__ uint32_t buffer() const { return first_ + index_ * bytes; }
  __device__ uint32_t full() const { return full_ + index_ * 8; }
  __device__ uint32_t free() const { return full_ + (buffers + index_) * 8; }
  __device__ void wait_full() const { barrier_wait(full(), parity_); }
  __device__ void wait_free() const { barrier_wait(free(), parity_ ^ 1); }
  __device__ void next() {
    if (++index_ == buffers) {
      index_ = 0;
      parity_ ^= 1;
    }
  }

 private:
  uint32_t first_, full_;
  int index_ = 0;
  uint32_t parity_ = 0;  // of this round through the ring
};

}  // namespace lfm2
