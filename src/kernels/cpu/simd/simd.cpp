// Finds the tables of vector kernels that this machine can run.
#include "kernels/cpu/simd/simd.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace lfm2 {

namespace {

// Whether the processor has AMX and the system lets this process use its tiles. Their registers are large, and Linux
// saves them only for processes that ask.
bool amx_supported() {
#if defined(__x86_64__) && defined(__linux__) && defined(SYS_arch_prctl)
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kBf16) != 0 && (d & kTile) != 0 &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

}  // namespace

std::vector<const Simd*> available_simd() {
  std::vector<const Simd*> tables;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq")) {
    if (amx_supported()) tables.push_back(&kSimdAmx);
    if (__builtin_cpu_supports("avx512bf16")) tables.push_back(&kSimdAvx512Bf16);
    tables.push_back(&kSimdAvx512);
  }
  // Every processor with AVX2 and FMA also converts fp16 (F16C).
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) tables.push_back(&kSimdAvx2);
#endif
  tables.push_back(&kSimdPortable);
  return tables;
}

}  // namespace lfm2
