// The tensor-core instructions of sm_80 and later, and the shared-memory layout that they read. Rows consist of 16-byte
// chunks, with chunk c of row r at place c ^ (r % 8), so that eight rows of one chunk column lie in different banks.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace lfm2 {

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Byte offset of a chunk; `row_chunks` is a multiple of 8.
__device__ inline int chunk_offset(int row, int chunk, int row_chunks) {
  return (row * row_chunks + (chunk ^ (row & 7))) * 16;
}

// Copies 16 bytes from global to shared memory in the background. If not `valid`, it reads nothing and writes zeros.
__device__ inline void copy_async(uint32_t target, const void* source, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(target), "l"(source), "r"(valid ? 16 : 0)
               : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
template <int pending>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(pending) : "memory");
}

// A barrier of this many threads of the block, whole warps, which may reach it at different places of the code
// (__syncthreads is for all threads, at one place).
template <int threads>
__device__ inline void named_barrier() {
  asm volatile("bar.sync 1, %0;\n" ::"n"(threads) : "memory");
}

// The same for a warpgroup's four warps.
__device__ inline void warpgroup_barrier(int warpgroup) {
  asm volatile("bar.sync %0, 128;\n" ::"r"(3 + warpgroup) : "memory");
}

// The same for all threads of the block.
__device__ inline void block_barrier() { asm volatile("bar.sync 2;\n" ::: "memory"); }

__device__ inline void load_matrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ inline void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

__device__ inline uint32_t load_shared_u16(uint32_t address) {
  uint16_t bits;
  asm volatile("ld.shared.u16 %0, [%1];\n" : "=h"(bits) : "r"(address) : "memory");
  return bits;
}

// d += a b, for a [16, 16], b [16, 8] and d [16, 8] fp32. Lane l holds of d:
//                columns 2 (l % 4) + {0, 1}
//   row l / 4         d[0]  d[1]
//   row l / 4 + 8     d[2]  d[3]
template <class T>
__device__ void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
__device__ inline void multiply_add<__nv_bfloat16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ inline void multiply_add<__half>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace lfm2
