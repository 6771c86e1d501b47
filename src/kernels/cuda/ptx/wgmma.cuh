// Hopper's matrix instruction, wgmma (sm_90a): four warps multiply 64 rows by up to 256 columns, 32 bytes of k at a
// time, with fp32 sums in registers. The multiplication runs in the background: a warp calls the fence, some multiplies
// and the commit, and may use the registers and the shared memory again after the wait.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "kernels/cuda/ptx/wgmma_sums.cuh"

namespace lfm2 {

// Orders the registers' last use before the multiplies that follow.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
template <int pending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(pending) : "memory");
}
// Keeps the compiler from moving uses of the sums across a fence or a wait.
template <int size>
__device__ inline void wgmma_keep(float (&d)[size]) {
#pragma unroll
  for (int i = 0; i < size; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// The descriptor of an operand that begins at `address` in shared memory: rows of 128 bytes of k. Each eight rows begin
// on 1024 bytes and are swizzled as the copy engine leaves them. Of its two words only the first one varies, and the
// compiler knows that word to be the same in all lanes, so that uniform instructions find parts of the operand. A whole
// warp constructs it, with the same address in all lanes.
class WgmmaOperand {
 public:
  __device__ __forceinline__ explicit WgmmaOperand(uint32_t address)
      : low_(__shfl_sync(0xffffffffu, (address & 0x3ffff) >> 4 | 1u << 16, 0)) {}
  // The descriptor of what lies `sixteens` times 16 bytes further.
  __device__ __forceinline__ uint64_t at(int sixteens) const {
    constexpr uint64_t kHigh = uint64_t{1024 >> 4} | uint64_t{1} << 30;
    return kHigh << 32 | (low_ + static_cast<uint32_t>(sixteens));
  }

 private:
  uint32_t low_;
};
// The elements of k of one instruction, in units of 16 bytes.
constexpr int kWgmmaStep = 32 >> 4;

// The texts of an instruction that depend on its operands' type. kOrder: both operands have their rows along k, which
// only the 16-bit instruction has to be told.
template <class T>
struct MmaType;
template <>
struct MmaType<__nv_bfloat16> {
  static constexpr char kName[] = "bf16", kDepth[] = "16", kOrder[] = ", 0, 0";
};
template <>
struct MmaType<__half> {
  static constexpr char kName[] = "f16", kDepth[] = "16", kOrder[] = ", 0, 0";
};
template <>
struct MmaType<__nv_fp8_e4m3> {
  static constexpr char kName[] = "e4m3", kDepth[] = "32", kOrder[] = "";
};

// One instruction, compiled if it is that of `columns`. `eights` is width / 8; the texts are the numbers of the
// operands after the sums.
#define LFM2_WGMMA(width, eights, a_text, w_text, add_text, type_text, depth_text, order_text)                       \
  if constexpr (columns == width)                                                                                    \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add_text ", 0;\nwgmma.mma_async.sync.aligned.m64n" #width         \
               "k" depth_text ".f32." type_text "." type_text " {" LFM2_WGMMA_TEXT_##eights                          \
               "}, " a_text ", " w_text ", p, 1, 1" order_text ";\n}\n"                                              \
               : LFM2_WGMMA_SUMS_##eights                                                                            \
               : "l"(a), "l"(w), "r"(static_cast<int>(accumulate)), "C"(MmaType<T>::kName), "C"(MmaType<T>::kDepth), \
                 "C"(MmaType<T>::kOrder))

// d (+)= a wᵀ, for a [64, 32 bytes] and w [columns, 32 bytes] of type T in shared memory. Thread t of the four warps
// holds of d, for each eight columns j:
//                                   columns 8 j + 2 (t % 4) + {0, 1}
//   row t / 32 * 16 + t % 32 / 4         d[4 j]      d[4 j + 1]
//   the row 8 further                    d[4 j + 2]  d[4 j + 3]
template <class T, int columns, int size>
__device__ inline void wgmma(float (&d)[size], uint64_t a, uint64_t w, bool accumulate) {
  static_assert(size >= columns / 2, "a thread holds columns / 2 sums");
  static_assert(columns > 0 && columns <= 256 &&
                    columns % (columns <= 64    ? 8
                               : columns <= 160 ? 16
                                                : 32) ==
                        0,
                "no such instruction here");
  LFM2_WGMMA(256, 32, "%128", "%129", "%130", "%131", "%132", "%133");
  LFM2_WGMMA(224, 28, "%112", "%113", "%114", "%115", "%116", "%117");
  LFM2_WGMMA(192, 24, "%96", "%97", "%98", "%99", "%100", "%101");
  LFM2_WGMMA(160, 20, "%80", "%81", "%82", "%83", "%84", "%85");
  LFM2_WGMMA(144, 18, "%72", "%73", "%74", "%75", "%76", "%77");
  LFM2_WGMMA(128, 16, "%64", "%65", "%66", "%67", "%68", "%69");
  LFM2_WGMMA(112, 14, "%56", "%57", "%58", "%59", "%60", "%61");
  LFM2_WGMMA(96, 12, "%48", "%49", "%50", "%51", "%52", "%53");
  LFM2_WGMMA(80, 10, "%40", "%41", "%42", "%43", "%44", "%45");
  LFM2_WGMMA(64, 8, "%32", "%33", "%34", "%35", "%36", "%37");
  LFM2_WGMMA(56, 7, "%28", "%29", "%30", "%31", "%32", "%33");
  LFM2_WGMMA(48, 6, "%24", "%25", "%26", "%27", "%28", "%29");
  LFM2_WGMMA(40, 5, "%20", "%21", "%22", "%23", "%24", "%25");
  LFM2_WGMMA(32, 4, "%16", "%17", "%18", "%19", "%20", "%21");
  LFM2_WGMMA(24, 3, "%12", "%13", "%14", "%15", "%16", "%17");
  LFM2_WGMMA(16, 2, "%8", "%9", "%10", "%11", "%12", "%13");
  LFM2_WGMMA(8, 1, "%4", "%5", "%6", "%7", "%8", "%9");
}

// The same with a in registers, as for mma.sync: of the warp's 16 rows the rows t % 32 / 4 and t % 32 / 4 + 8, elements
// 2 (t % 4) + {0, 1}, then the elements 8 further along k.
template <class T>
__device__ inline void wgmma_128(float (&d)[64], const uint32_t (&a)[4], uint64_t w, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.%70.%70 "
      "{" LFM2_WGMMA_TEXT_16
      "}, "
      "{%64, %65, %66, %67}, %68, p, 1, 1, 0;\n}\n"
      : LFM2_WGMMA_SUMS_16
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(w), "r"(static_cast<int>(accumulate)), "C"(MmaType<T>::kName));
}

// The same with b = w transposed: w [16, 64] begins at the operand's address, its rows are swizzled rows of 128 bytes,
// and kWgmmaRowStep goes 16 rows further.
constexpr int kWgmmaRowStep = 16 * 128 >> 4;
template <class T>
__device__ inline void wgmma_64_transposed(float (&d)[32], const uint32_t (&a)[4], uint64_t w, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.%38.%38 "
      "{" LFM2_WGMMA_TEXT_8
      "}, "
      "{%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}\n"
      : LFM2_WGMMA_SUMS_8
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(w), "r"(static_cast<int>(accumulate)), "C"(MmaType<T>::kName));
}

}  // namespace lfm2
