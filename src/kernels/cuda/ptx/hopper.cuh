// Functions for single instructions of Hopper (sm_90a): barriers in shared memory, the copy engine, clusters, register
// budgets. The instructions of the tensor cores are in wgmma.cuh. Shared memory is named by its 32-bit address
// (shared_address of mma.cuh).
#pragma once

#include <cuda.h>

#include "kernels/cuda/ptx/mma.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"

namespace lfm2 {

// An mbarrier, 8 bytes in shared memory. Its phase ends once `arrivals` threads have arrived and all announced bytes
// have been written. Phases follow one another, and a wait names the parity of the phase that it waits for.
__device__ inline void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Call this after the last barrier_init(): the copy engine and the other blocks of the cluster may use the barriers
// after the next sync.
__device__ inline void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory"); }

__device__ inline void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}
// Arrives at the barrier that block `rank` of the cluster has at the same address; the block's own rank is allowed,
// too. The arrival orders what the tensor cores have read before what the copy engine will write. It does not make
// ordinary memory visible to the other block, which would cost a fence of the whole GPU.
__device__ inline void barrier_arrive_at(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}\n" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
// Arrives, and announces `bytes` of copies that the phase waits for as well.
__device__ inline void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes) : "memory");
}
// True once the phase of this parity has ended. The hardware may wait a while before it returns false.
__device__ inline bool barrier_try_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}
// The same without waiting.
__device__ inline bool barrier_test(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}
// The wait has no limit and no trap: if the paths of two warpgroups could meet, even only in a trap, ptxas would no
// longer give each its own number of registers.
__device__ inline void barrier_wait(uint32_t barrier, uint32_t parity) {
  while (!barrier_try_wait(barrier, parity)) {
  }
}

// True in one lane of a whole warp, always the same one. The compiler knows that only one thread continues, so it
// passes operands to the copy instructions without a loop over lanes that might differ.
__device__ inline bool elect_lane() {
  uint32_t elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}\n" : "=r"(elected));
  return elected != 0;
}

// One thread starts the copy of a box of a tensor map (tensor_map.h), which runs in the background. x counts elements
// along a row, y rows and z matrices; what lies outside the tensor becomes zeros. `barrier` counts the bytes.
__device__ inline void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(map) : "memory");
}
__device__ inline void load_box(uint32_t target, const CUtensorMap* map, uint32_t barrier, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];\n" ::"r"(
          target),
      "l"(map), "r"(barrier), "r"(x), "r"(y)
      : "memory");
}
__device__ inline void load_box(uint32_t target, const CUtensorMap* map, uint32_t barrier, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];\n" ::"r"(target),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
      : "memory");
}
// How a copy treats the L2 cache, as createpolicy encodes it for all of its bytes: with kEvictFirst they are evicted
// before anything else. The copy instructions need uniform operands, so the policies are constants; a policy in a
// register would slow them down.
constexpr uint64_t kEvictNormal = 0x1000000000000000, kEvictFirst = 0x12f0000000000000;
__device__ inline void load_box(uint32_t target, const CUtensorMap* map, uint32_t barrier, int x, int y, int z,
                                uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, "
      "%5}], [%2], %6;\n" ::"r"(target),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "l"(policy)
      : "memory");
}
// Copies the box to the same place in every block of the cluster whose bit is in `blocks`; each block's own barrier
// counts the bytes.
__device__ inline void load_box_multicast(uint32_t target, const CUtensorMap* map, uint32_t barrier, uint16_t blocks,
                                          int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%4, "
      "%5}], [%2], %3;\n" ::"r"(target),
      "l"(map), "r"(barrier), "h"(blocks), "r"(x), "r"(y)
      : "memory");
}
__device__ inline void load_box_multicast(uint32_t target, const CUtensorMap* map, uint32_t barrier, uint16_t blocks,
                                          int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%4, "
      "%5, %6}], [%2], %3;\n" ::"r"(target),
      "l"(map), "r"(barrier), "h"(blocks), "r"(x), "r"(y), "r"(z)
      : "memory");
}
// Every thread that wrote shared memory calls this before the barrier after which tensor cores or the copy engine read
// it.
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

__device__ inline uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
  return rank;
}
// A barrier of all threads of all blocks of the cluster. The lanes of a warp must reach it together.
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n" ::: "memory");
}

// The two halves of such a barrier, for blocks that only have to know that the others have started and initialized
// their barriers in shared memory. Other memory does not become visible, which would cost a fence of the whole GPU.
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;\n" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;\n" ::: "memory"); }
// Stores four bytes to the same address of block `rank` of the cluster, whose barrier counts them.
__device__ inline void store_at(uint32_t address, uint32_t value, uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 target, remote;\nmapa.shared::cluster.u32 target, %0, %3;\n"
      "mapa.shared::cluster.u32 remote, %2, %3;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [target], %1, [remote];\n}\n" ::"r"(address),
      "r"(value), "r"(barrier), "r"(rank)
      : "memory");
}

// These move registers between the warpgroups of a block. All four warps of a warpgroup call them. `registers` is what
// a thread has afterwards: a multiple of 8, from 24 to 240.
template <int registers>
__device__ inline void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(registers));
}
template <int registers>
__device__ inline void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(registers));
}

// Stores four eight-by-eight matrices of 16-bit elements, laid out over the lanes as load_matrices leaves them.
__device__ inline void store_matrices(uint32_t address, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(address), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// The same, each matrix transposed.
__device__ inline void store_matrices_transposed(uint32_t address, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(address), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

__device__ inline uint4 load_shared(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
// The same without a branch; zeros if not `there`.
__device__ inline uint4 load_shared_if(bool there, uint32_t address) {
  uint4 v{};
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n@p ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n}\n"
               : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
               : "r"(address), "r"(static_cast<int>(there))
               : "memory");
  return v;
}
// Loads 16 bytes for a whole warp; only lane `reader` reads them. Its later arrival at a barrier reports that they have
// been read. (If every lane read, __syncwarp would order the reads before that arrival, too, but racecheck does not
// follow that.)
__device__ inline uint4 load_shared_by(int reader, uint32_t address) {
  uint4 v{};
  if (static_cast<int>(threadIdx.x % 32) == reader) v = load_shared(address);
  for (uint32_t* word : {&v.x, &v.y, &v.z, &v.w}) *word = __shfl_sync(0xffffffffu, *word, reader);
  return v;
}
__device__ inline void store_shared(uint32_t address, uint4 v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

}  // namespace lfm2
