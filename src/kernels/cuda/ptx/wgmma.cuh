// Hopper's matrix instruction, wgmma (sm_90a): four warps multiply 64 rows by up to 256 columns, 16 of k at a time,
// with fp32 sums in registers. The multiplication runs in the background: a warp calls the fence, some multiplies and
// the commit, and may use the registers and the shared memory again after the wait.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

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

// The descriptor of an operand that begins at `address`: rows of 128 bytes (64 elements of k), of which each eight
// begin on 1024 bytes and are swizzled as the copy engine leaves them. Adding kWgmmaStep goes 16 elements of k further.
__device__ constexpr uint64_t wgmma_operand(uint32_t address) {
  return uint64_t{(address & 0x3ffff) >> 4} | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}
constexpr uint64_t kWgmmaStep = 32 >> 4;

template <class T>
struct MmaType;
template <>
struct MmaType<__nv_bfloat16> {
  static constexpr char kName[] = "bf16";
};
template <>
struct MmaType<__half> {
  static constexpr char kName[] = "f16";
};

// The sums' registers in the text of the instruction, and as operands of asm, eight columns after the other.
#define LFM2_WGMMA_TEXT_1 "%0, %1, %2, %3"
#define LFM2_WGMMA_TEXT_2 LFM2_WGMMA_TEXT_1 ", %4, %5, %6, %7"
#define LFM2_WGMMA_TEXT_3 LFM2_WGMMA_TEXT_2 ", %8, %9, %10, %11"
#define LFM2_WGMMA_TEXT_4 LFM2_WGMMA_TEXT_3 ", %12, %13, %14, %15"
#define LFM2_WGMMA_TEXT_5 LFM2_WGMMA_TEXT_4 ", %16, %17, %18, %19"
#define LFM2_WGMMA_TEXT_6 LFM2_WGMMA_TEXT_5 ", %20, %21, %22, %23"
#define LFM2_WGMMA_TEXT_7 LFM2_WGMMA_TEXT_6 ", %24, %25, %26, %27"
#define LFM2_WGMMA_TEXT_8 LFM2_WGMMA_TEXT_7 ", %28, %29, %30, %31"
#define LFM2_WGMMA_TEXT_9 LFM2_WGMMA_TEXT_8 ", %32, %33, %34, %35"
#define LFM2_WGMMA_TEXT_10 LFM2_WGMMA_TEXT_9 ", %36, %37, %38, %39"
#define LFM2_WGMMA_TEXT_11 LFM2_WGMMA_TEXT_10 ", %40, %41, %42, %43"
#define LFM2_WGMMA_TEXT_12 LFM2_WGMMA_TEXT_11 ", %44, %45, %46, %47"
#define LFM2_WGMMA_TEXT_13 LFM2_WGMMA_TEXT_12 ", %48, %49, %50, %51"
#define LFM2_WGMMA_TEXT_14 LFM2_WGMMA_TEXT_13 ", %52, %53, %54, %55"
#define LFM2_WGMMA_TEXT_15 LFM2_WGMMA_TEXT_14 ", %56, %57, %58, %59"
#define LFM2_WGMMA_TEXT_16 LFM2_WGMMA_TEXT_15 ", %60, %61, %62, %63"
#define LFM2_WGMMA_TEXT_17 LFM2_WGMMA_TEXT_16 ", %64, %65, %66, %67"
#define LFM2_WGMMA_TEXT_18 LFM2_WGMMA_TEXT_17 ", %68, %69, %70, %71"
#define LFM2_WGMMA_TEXT_19 LFM2_WGMMA_TEXT_18 ", %72, %73, %74, %75"
#define LFM2_WGMMA_TEXT_20 LFM2_WGMMA_TEXT_19 ", %76, %77, %78, %79"
#define LFM2_WGMMA_TEXT_21 LFM2_WGMMA_TEXT_20 ", %80, %81, %82, %83"
#define LFM2_WGMMA_TEXT_22 LFM2_WGMMA_TEXT_21 ", %84, %85, %86, %87"
#define LFM2_WGMMA_TEXT_23 LFM2_WGMMA_TEXT_22 ", %88, %89, %90, %91"
#define LFM2_WGMMA_TEXT_24 LFM2_WGMMA_TEXT_23 ", %92, %93, %94, %95"
#define LFM2_WGMMA_TEXT_25 LFM2_WGMMA_TEXT_24 ", %96, %97, %98, %99"
#define LFM2_WGMMA_TEXT_26 LFM2_WGMMA_TEXT_25 ", %100, %101, %102, %103"
#define LFM2_WGMMA_TEXT_27 LFM2_WGMMA_TEXT_26 ", %104, %105, %106, %107"
#define LFM2_WGMMA_TEXT_28 LFM2_WGMMA_TEXT_27 ", %108, %109, %110, %111"
#define LFM2_WGMMA_TEXT_29 LFM2_WGMMA_TEXT_28 ", %112, %113, %114, %115"
#define LFM2_WGMMA_TEXT_30 LFM2_WGMMA_TEXT_29 ", %116, %117, %118, %119"
#define LFM2_WGMMA_TEXT_31 LFM2_WGMMA_TEXT_30 ", %120, %121, %122, %123"
#define LFM2_WGMMA_TEXT_32 LFM2_WGMMA_TEXT_31 ", %124, %125, %126, %127"
#define LFM2_WGMMA_EIGHT(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define LFM2_WGMMA_SUMS_1 LFM2_WGMMA_EIGHT(0)
#define LFM2_WGMMA_SUMS_2 LFM2_WGMMA_SUMS_1, LFM2_WGMMA_EIGHT(4)
#define LFM2_WGMMA_SUMS_3 LFM2_WGMMA_SUMS_2, LFM2_WGMMA_EIGHT(8)
#define LFM2_WGMMA_SUMS_4 LFM2_WGMMA_SUMS_3, LFM2_WGMMA_EIGHT(12)
#define LFM2_WGMMA_SUMS_5 LFM2_WGMMA_SUMS_4, LFM2_WGMMA_EIGHT(16)
#define LFM2_WGMMA_SUMS_6 LFM2_WGMMA_SUMS_5, LFM2_WGMMA_EIGHT(20)
#define LFM2_WGMMA_SUMS_7 LFM2_WGMMA_SUMS_6, LFM2_WGMMA_EIGHT(24)
#define LFM2_WGMMA_SUMS_8 LFM2_WGMMA_SUMS_7, LFM2_WGMMA_EIGHT(28)
#define LFM2_WGMMA_SUMS_9 LFM2_WGMMA_SUMS_8, LFM2_WGMMA_EIGHT(32)
#define LFM2_WGMMA_SUMS_10 LFM2_WGMMA_SUMS_9, LFM2_WGMMA_EIGHT(36)
#define LFM2_WGMMA_SUMS_11 LFM2_WGMMA_SUMS_10, LFM2_WGMMA_EIGHT(40)
#define LFM2_WGMMA_SUMS_12 LFM2_WGMMA_SUMS_11, LFM2_WGMMA_EIGHT(44)
#define LFM2_WGMMA_SUMS_13 LFM2_WGMMA_SUMS_12, LFM2_WGMMA_EIGHT(48)
#define LFM2_WGMMA_SUMS_14 LFM2_WGMMA_SUMS_13, LFM2_WGMMA_EIGHT(52)
#define LFM2_WGMMA_SUMS_15 LFM2_WGMMA_SUMS_14, LFM2_WGMMA_EIGHT(56)
#define LFM2_WGMMA_SUMS_16 LFM2_WGMMA_SUMS_15, LFM2_WGMMA_EIGHT(60)
#define LFM2_WGMMA_SUMS_17 LFM2_WGMMA_SUMS_16, LFM2_WGMMA_EIGHT(64)
#define LFM2_WGMMA_SUMS_18 LFM2_WGMMA_SUMS_17, LFM2_WGMMA_EIGHT(68)
#define LFM2_WGMMA_SUMS_19 LFM2_WGMMA_SUMS_18, LFM2_WGMMA_EIGHT(72)
#define LFM2_WGMMA_SUMS_20 LFM2_WGMMA_SUMS_19, LFM2_WGMMA_EIGHT(76)
#define LFM2_WGMMA_SUMS_21 LFM2_WGMMA_SUMS_20, LFM2_WGMMA_EIGHT(80)
#define LFM2_WGMMA_SUMS_22 LFM2_WGMMA_SUMS_21, LFM2_WGMMA_EIGHT(84)
#define LFM2_WGMMA_SUMS_23 LFM2_WGMMA_SUMS_22, LFM2_WGMMA_EIGHT(88)
#define LFM2_WGMMA_SUMS_24 LFM2_WGMMA_SUMS_23, LFM2_WGMMA_EIGHT(92)
#define LFM2_WGMMA_SUMS_25 LFM2_WGMMA_SUMS_24, LFM2_WGMMA_EIGHT(96)
#define LFM2_WGMMA_SUMS_26 LFM2_WGMMA_SUMS_25, LFM2_WGMMA_EIGHT(100)
#define LFM2_WGMMA_SUMS_27 LFM2_WGMMA_SUMS_26, LFM2_WGMMA_EIGHT(104)
#define LFM2_WGMMA_SUMS_28 LFM2_WGMMA_SUMS_27, LFM2_WGMMA_EIGHT(108)
#define LFM2_WGMMA_SUMS_29 LFM2_WGMMA_SUMS_28, LFM2_WGMMA_EIGHT(112)
#define LFM2_WGMMA_SUMS_30 LFM2_WGMMA_SUMS_29, LFM2_WGMMA_EIGHT(116)
#define LFM2_WGMMA_SUMS_31 LFM2_WGMMA_SUMS_30, LFM2_WGMMA_EIGHT(120)
#define LFM2_WGMMA_SUMS_32 LFM2_WGMMA_SUMS_31, LFM2_WGMMA_EIGHT(124)
// `eights` is columns / 8, and a, w, add and type are the numbers of the operands behind the sums.
#define LFM2_WGMMA(columns, eights, a_text, w_text, add_text, type_text)                                       \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add_text ", 0;\nwgmma.mma_async.sync.aligned.m64n" #columns \
               "k16.f32." type_text "." type_text " {" LFM2_WGMMA_TEXT_##eights "}, " a_text ", " w_text       \
                                                                                ", p, 1, 1, 0, 0;\n}\n"        \
               : LFM2_WGMMA_SUMS_##eights                                                                      \
               : "l"(a), "l"(w), "r"(static_cast<int>(accumulate)), "C"(MmaType<T>::kName))

// d (+)= a wᵀ, for a [64, 16] and w [columns, 16] of type T in shared memory. Thread t of the four warps holds of d the
// row t / 32 * 16 + t % 32 / 4, columns 8 j + 2 (t % 4) + {0, 1}, in d[4 j + {0, 1}], and the row 8 further, same
// columns, in d[4 j + {2, 3}].
template <class T, int columns, int size>
__device__ inline void wgmma(float (&d)[size], uint64_t a, uint64_t w, bool accumulate) {
  static_assert(size >= columns / 2, "a thread holds columns / 2 sums");
  if constexpr (columns == 256)
    LFM2_WGMMA(256, 32, "%128", "%129", "%130", "%131");
  else if constexpr (columns == 224)
    LFM2_WGMMA(224, 28, "%112", "%113", "%114", "%115");
  else if constexpr (columns == 192)
    LFM2_WGMMA(192, 24, "%96", "%97", "%98", "%99");
  else if constexpr (columns == 160)
    LFM2_WGMMA(160, 20, "%80", "%81", "%82", "%83");
  else if constexpr (columns == 144)
    LFM2_WGMMA(144, 18, "%72", "%73", "%74", "%75");
  else if constexpr (columns == 128)
    LFM2_WGMMA(128, 16, "%64", "%65", "%66", "%67");
  else if constexpr (columns == 112)
    LFM2_WGMMA(112, 14, "%56", "%57", "%58", "%59");
  else if constexpr (columns == 96)
    LFM2_WGMMA(96, 12, "%48", "%49", "%50", "%51");
  else if constexpr (columns == 80)
    LFM2_WGMMA(80, 10, "%40", "%41", "%42", "%43");
  else if constexpr (columns == 64)
    LFM2_WGMMA(64, 8, "%32", "%33", "%34", "%35");
  else if constexpr (columns == 56)
    LFM2_WGMMA(56, 7, "%28", "%29", "%30", "%31");
  else if constexpr (columns == 48)
    LFM2_WGMMA(48, 6, "%24", "%25", "%26", "%27");
  else if constexpr (columns == 40)
    LFM2_WGMMA(40, 5, "%20", "%21", "%22", "%23");
  else if constexpr (columns == 32)
    LFM2_WGMMA(32, 4, "%16", "%17", "%18", "%19");
  else if constexpr (columns == 24)
    LFM2_WGMMA(24, 3, "%12", "%13", "%14", "%15");
  else if constexpr (columns == 16)
    LFM2_WGMMA(16, 2, "%8", "%9", "%10", "%11");
  else if constexpr (columns == 8)
    LFM2_WGMMA(8, 1, "%4", "%5", "%6", "%7");
  else
    static_assert(columns == 0, "no such instruction here");
}

// The same with a in registers, as mma.sync takes it: of the warp's 16 rows the rows t % 32 / 4 and t % 32 / 4 + 8,
// elements 2 (t % 4) + {0, 1}, then the elements 8 further along k.
template <class T>
__device__ inline void wgmma_128(float (&d)[64], const uint32_t (&a)[4], uint64_t w, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.%70.%70 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, p, 1, 1, 0;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),
        "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
        "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
        "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(w), "r"(static_cast<int>(accumulate)), "C"(MmaType<T>::kName));
}

// The same with b = w transposed: w [16, 64] begins at the operand's address, its rows are swizzled rows of 128 bytes,
// and kWgmmaRowStep goes 16 rows further.
constexpr uint64_t kWgmmaRowStep = 16 * 128 >> 4;
template <class T>
__device__ inline void wgmma_64_transposed(float (&d)[32], const uint32_t (&a)[4], uint64_t w, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.%38.%38 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(w), "r"(static_cast<int>(accumulate)), "C"(MmaType<T>::kName));
}

}  // namespace lfm2
