// Which vector kernels this machine can run.
#include "kernels/cpu/simd.h"

namespace lfm2 {

std::vector<const Simd*> available_simd() {
  std::vector<const Simd*> tables;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq"))
    tables.push_back(&kSimdAvx512);
  // Every processor with AVX2 and FMA also converts fp16 (F16C).
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) tables.push_back(&kSimdAvx2);
#endif
  tables.push_back(&kSimdPortable);
  return tables;
}

}  // namespace lfm2
