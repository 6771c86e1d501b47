// The families of functions of map and zip. Each family has separate kernels, which choose the function at run time.
#pragma once

#include "operators/cuda/launch.cuh"

namespace lfm2::operators::gpu {

constexpr int kThreads = 256;  // threads of a block

// The functions between which a kernel can choose.
enum class Family { kUnary, kTrigonometric, kBinary };

template <class T, Family family, int kCount>
__device__ void compute(int function, float (&x)[1][kCount]) {
  if constexpr (family == Family::kTrigonometric)
    apply_trigonometric(static_cast<UnaryFunction>(function), x[0]);
  else
    apply<MathFor<T>>(static_cast<UnaryFunction>(function), x[0]);
}
template <class T, Family family, int kCount>
__device__ void compute(int function, float (&x)[2][kCount]) {
  apply(static_cast<BinaryFunction>(function), x[0], x[1]);
}

}  // namespace lfm2::operators::gpu
