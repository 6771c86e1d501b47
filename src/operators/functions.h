// The functions of map, zip and bias, one definition for the CPU and for kernels. All compute in fp32; comparisons give
// 1 or 0; NaN passes through everything but comparisons, max and min included, as in NumPy.
#pragma once

#include <cmath>

#include "operators/host_device.h"

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

LFM2_HOST_DEVICE inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
LFM2_HOST_DEVICE inline float relu(float x) { return x < 0.0f ? 0.0f : x; }
LFM2_HOST_DEVICE inline float silu(float x) { return x / (1.0f + expf(-x)); }
LFM2_HOST_DEVICE inline float gelu(float x) { return 0.5f * x * erfcf(-0.707106781186547524f * x); }
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

// x = f(x). The choice stands outside the loop over the elements.
template <int count>
LFM2_HOST_DEVICE inline void apply(UnaryFunction function, float (&x)[count]) {
  switch (function) {
    case UnaryFunction::kIdentity:
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
      return each(x, [](float v) { return expf(v); });
    case UnaryFunction::kLog:
      return each(x, [](float v) { return logf(v); });
    case UnaryFunction::kSin:
      return each(x, [](float v) { return sinf(v); });
    case UnaryFunction::kCos:
      return each(x, [](float v) { return cosf(v); });
    case UnaryFunction::kTanh:
      return each(x, [](float v) { return tanhf(v); });
    case UnaryFunction::kSigmoid:
      return each(x, [](float v) { return sigmoid(v); });
    case UnaryFunction::kRelu:
      return each(x, [](float v) { return relu(v); });
    case UnaryFunction::kSilu:
      return each(x, [](float v) { return silu(v); });
    case UnaryFunction::kGelu:
      return each(x, [](float v) { return gelu(v); });
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

constexpr UnaryFunction unary(Activation activation) {
  switch (activation) {
    case Activation::kNone:
    case Activation::kCount:
      return UnaryFunction::kIdentity;
    case Activation::kRelu:
      return UnaryFunction::kRelu;
    case Activation::kSilu:
      return UnaryFunction::kSilu;
    case Activation::kGelu:
      return UnaryFunction::kGelu;
  }
  return UnaryFunction::kIdentity;
}

template <class Enum>
constexpr bool is_known(Enum value) {
  return static_cast<int>(value) >= 0 && static_cast<int>(value) < static_cast<int>(Enum::kCount);
}

}  // namespace lfm2::operators
