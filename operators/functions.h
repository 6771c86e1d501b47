// The functions of map, zip and bias, defined once for the CPU and for kernels. All compute in fp32. Comparisons give 1
// or 0. All others propagate NaN, including max and min, as in NumPy.
#pragma once

#include <cmath>

#include "base/host_device.h"

namespace lfm2::operators {

// The numbers are part of the C API.
enum class UnaryFunction : int {
  kIdentity = 0,
  kNeg,
  kAbs,
  kSign,
  kSquare,
  kSqrt,
  kRsqrt,
  kInv,
  kExp,
  kLog,
  kSin,
  kCos,
  kTanh,
  kSigmoid,
  kRelu,
  kSilu,
  kGelu,  // exact: x Phi(x)
  kCount
};

enum class BinaryFunction : int { kAdd = 0, kSub, kMul, kDiv, kMax, kMin, kPow, kLt, kLe, kGt, kGe, kEq, kNe, kCount };

enum class ReduceFunction : int { kSum = 0, kProd, kMax, kMin, kMean, kCount };

enum class Activation : int { kNone = 0, kRelu, kSilu, kGelu, kCount };

LFM2_HOST_DEVICE inline float relu(float x) { return x < 0.0f ? 0.0f : x; }

#ifdef __CUDACC__
// 1 / x within one unit in the last place; 0 for x beyond 2^126.
__device__ inline float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// relu(x), and NaN for NaN, in one instruction.
__device__ inline float relu_at_once(float x) {
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
  return y;
}
#endif

// The arithmetic for results with the precision of fp32.
struct Accurate {
  LFM2_HOST_DEVICE static float exp(float x) { return expf(x); }
  LFM2_HOST_DEVICE static float one_and_exp(float x) { return 1.0f + expf(x); }
  LFM2_HOST_DEVICE static float tanh(float x) { return tanhf(x); }
  LFM2_HOST_DEVICE static float share(float x, float one_and_more) {
#ifdef __CUDA_ARCH__
    return x * reciprocal(one_and_more);
#else
    return x / one_and_more;
#endif
  }
};

LFM2_HOST_DEVICE inline float gelu_exact(float x) {
  // Without the bound, infinity times 0 would be NaN.
  return x < -20.0f ? -0.0f : 0.5f * x * erfcf(-0.707106781186547524f * x);
}

#ifdef __CUDACC__
// 2^x; 0 where the result is below 2^-126.
__device__ inline float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The arithmetic on a GPU for results that are rounded to 16 bits: relative errors are near 2^-20.
struct Quick {
  __device__ static float exp(float x) { return __expf(x); }
  __device__ static float one_and_exp(float x) { return 1.0f + power_of_two(1.4426950408889634f * x); }
  __device__ static float share(float x, float one_and_more) { return x * reciprocal(one_and_more); }
  __device__ static float tanh(float x) {
    const float near = fmaf(x * x * x, -1.0f / 3.0f, x);
    const float far = fmaf(-2.0f, reciprocal(one_and_exp(2.0f * x)), 1.0f);
    return fabsf(x) < 0.02f ? near : far;
  }
};

// Phi(-x) = erfc(z) / 2 for 0 <= x <= 20 and z = x / sqrt(2), with erfc(z) = t exp(P(t) - z^2) and t = 1 / (1 + z / 2).
// P is a minimax fit to log(erfc(z) exp(z^2) / t) over z from 0 to 10. With degree 9, its error is below 5e-8, and x
// Phi(x) is within 6e-8 absolutely; with degree 5, its error is below 8e-6.
__device__ inline float half_tail(Accurate, float x) {
  const float z = 0.707106781186547524f * x, t = reciprocal(fmaf(0.5f, z, 1.0f));
  float p = 0.1421949863433838f;
  p = fmaf(p, t, -0.6660670638084412f);
  p = fmaf(p, t, 1.1224101781845093f);
  p = fmaf(p, t, -0.651260495185852f);
  p = fmaf(p, t, -0.11677780002355576f);
  p = fmaf(p, t, 0.020190969109535217f);
  p = fmaf(p, t, 0.02835875190794468f);
  p = fmaf(p, t, 0.38789939880371094f);
  p = fmaf(p, t, 0.9984925389289856f);
  p = fmaf(p, t, -1.2654414176940918f);
  return 0.5f * t * expf(fmaf(-z, z, p));
}
__device__ inline float half_tail(Quick, float x) {  // powers of two instead of e, with the factor 1/2 among them
  const float t = reciprocal(fmaf(0.353553390593273762f, x, 1.0f));
  float p = 0.3300764262676239f;
  p = fmaf(p, t, -1.0231516361236572f);
  p = fmaf(p, t, 0.6845553517341614f);
  p = fmaf(p, t, 0.3670804500579834f);
  p = fmaf(p, t, 1.4686840772628784f);
  p = fmaf(p, t, -2.8272335529327393f);
  return t * power_of_two(fmaf(-0.721347520444481704f * x, x, p));
}
template <class Math>
__device__ inline float gelu_fitted(float x) {
  // Beyond 20 the tail is 0 in fp32; without the bound, infinity times 0 would be NaN.
  const float bounded = fminf(fabsf(x), 20.0f);
  return fmaf(-bounded, half_tail(Math{}, bounded), relu_at_once(x));
}
#endif

template <class Math>
LFM2_HOST_DEVICE inline float sigmoid(float x) {
  return Math::share(1.0f, Math::one_and_exp(-x));
}
template <class Math>
LFM2_HOST_DEVICE inline float silu(float x) {
  return Math::share(x, Math::one_and_exp(-x));
}
template <class Math>
LFM2_HOST_DEVICE inline float gelu(float x) {
#ifdef __CUDA_ARCH__
  return gelu_fitted<Math>(x);
#else
  return gelu_exact(x);
#endif
}
LFM2_HOST_DEVICE inline float larger(float a, float b) { return a >= b || a != a ? a : b; }
LFM2_HOST_DEVICE inline float smaller(float a, float b) { return a <= b || a != a ? a : b; }

template <int count, class F>
LFM2_HOST_DEVICE inline void each(float (&x)[count], F f) {
  for (int i = 0; i < count; ++i) x[i] = f(x[i]);
}
template <int count, class F>
LFM2_HOST_DEVICE inline void each(float (&x)[count], const float (&y)[count], F f) {
  for (int i = 0; i < count; ++i) x[i] = f(x[i], y[i]);
}

// sin and cos reduce large arguments in local memory, so they have separate kernels.
constexpr bool is_trigonometric(UnaryFunction function) {
  return function == UnaryFunction::kSin || function == UnaryFunction::kCos;
}
template <int count>
LFM2_HOST_DEVICE inline void apply_trigonometric(UnaryFunction function, float (&x)[count]) {
  if (function == UnaryFunction::kSin)
    each(x, [](float v) { return sinf(v); });
  else
    each(x, [](float v) { return cosf(v); });
}

// x = f(x) for all functions except the trigonometric ones. The function is chosen outside the loop over the elements.
template <class Math = Accurate, int count>
LFM2_HOST_DEVICE inline void apply(UnaryFunction function, float (&x)[count]) {
  switch (function) {
    case UnaryFunction::kIdentity:
    case UnaryFunction::kSin:
    case UnaryFunction::kCos:
    case UnaryFunction::kCount:
      return;
    case UnaryFunction::kNeg:
      return each(x, [](float v) { return -v; });
    case UnaryFunction::kAbs:
      return each(x, [](float v) { return fabsf(v); });
    case UnaryFunction::kSign:
      return each(x, [](float v) { return v > 0.0f ? 1.0f : v < 0.0f ? -1.0f : v; });
    case UnaryFunction::kSquare:
      return each(x, [](float v) { return v * v; });
    case UnaryFunction::kSqrt:
      return each(x, [](float v) { return sqrtf(v); });
    case UnaryFunction::kRsqrt:
      return each(x, [](float v) { return 1.0f / sqrtf(v); });
    case UnaryFunction::kInv:
      return each(x, [](float v) { return 1.0f / v; });
    case UnaryFunction::kExp:
      return each(x, [](float v) { return Math::exp(v); });
    case UnaryFunction::kLog:
      return each(x, [](float v) { return logf(v); });
    case UnaryFunction::kTanh:
      return each(x, [](float v) { return Math::tanh(v); });
    case UnaryFunction::kSigmoid:
      return each(x, [](float v) { return sigmoid<Math>(v); });
    case UnaryFunction::kRelu:
      return each(x, [](float v) { return relu(v); });
    case UnaryFunction::kSilu:
      return each(x, [](float v) { return silu<Math>(v); });
    case UnaryFunction::kGelu:
      return each(x, [](float v) { return gelu<Math>(v); });
  }
}

// x = f(x, y).
template <int count>
LFM2_HOST_DEVICE inline void apply(BinaryFunction function, float (&x)[count], const float (&y)[count]) {
  switch (function) {
    case BinaryFunction::kAdd:
      return each(x, y, [](float a, float b) { return a + b; });
    case BinaryFunction::kSub:
      return each(x, y, [](float a, float b) { return a - b; });
    case BinaryFunction::kMul:
      return each(x, y, [](float a, float b) { return a * b; });
    case BinaryFunction::kDiv:
      return each(x, y, [](float a, float b) { return a / b; });
    case BinaryFunction::kMax:
      return each(x, y, [](float a, float b) { return larger(a, b); });
    case BinaryFunction::kMin:
      return each(x, y, [](float a, float b) { return smaller(a, b); });
    case BinaryFunction::kPow:
      return each(x, y, [](float a, float b) { return powf(a, b); });
    case BinaryFunction::kLt:
      return each(x, y, [](float a, float b) { return a < b ? 1.0f : 0.0f; });
    case BinaryFunction::kLe:
      return each(x, y, [](float a, float b) { return a <= b ? 1.0f : 0.0f; });
    case BinaryFunction::kGt:
      return each(x, y, [](float a, float b) { return a > b ? 1.0f : 0.0f; });
    case BinaryFunction::kGe:
      return each(x, y, [](float a, float b) { return a >= b ? 1.0f : 0.0f; });
    case BinaryFunction::kEq:
      return each(x, y, [](float a, float b) { return a == b ? 1.0f : 0.0f; });
    case BinaryFunction::kNe:
      return each(x, y, [](float a, float b) { return a != b ? 1.0f : 0.0f; });
    case BinaryFunction::kCount:
      return;
  }
}

template <class Math = Accurate, int count>
LFM2_HOST_DEVICE inline void apply(Activation activation, float (&x)[count]) {
  switch (activation) {
    case Activation::kNone:
    case Activation::kCount:
      return;
    case Activation::kRelu:
      return each(x, [](float v) { return relu(v); });
    case Activation::kSilu:
      return each(x, [](float v) { return silu<Math>(v); });
    case Activation::kGelu:
      return each(x, [](float v) { return gelu<Math>(v); });
  }
}

template <class Enum>
constexpr bool is_known(Enum value) {
  return static_cast<int>(value) >= 0 && static_cast<int>(value) < static_cast<int>(Enum::kCount);
}

}  // namespace lfm2::operators
