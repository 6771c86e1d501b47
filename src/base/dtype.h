// Element types and their conversions on the host. bf16, fp16 and fp8 are plain bit patterns, because g++ 12 has no C++
// types for them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace lfm2 {

// kF8 is E4M3 "fn" of the OCP 8-bit specification: 4 exponent bits with bias 7, 3 mantissa bits, no infinities, NaN is
// 0x7f and 0xff, magnitudes up to 448. Only operands of matrix products have this type, together with scales
// (kernels/tensor.h).
enum class DType : uint8_t { kF32, kBf16, kF16, kI32, kF8 };

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};
struct F8 {
  uint8_t bits;
};
inline constexpr float kMaxF8 = 448;  // the largest finite magnitude

constexpr size_t size_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBf16:
    case DType::kF16:
      return 2;
    case DType::kF8:
      return 1;
  }
  return 0;
}

constexpr std::string_view name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "fp32";
    case DType::kBf16:
      return "bf16";
    case DType::kF16:
      return "fp16";
    case DType::kI32:
      return "int32";
    case DType::kF8:
      return "fp8";
  }
  return "?";
}

// Parses "fp32", "bf16" or "fp16"; nothing for any other text.
constexpr std::optional<DType> parse_dtype(std::string_view text) {
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kF16})
    if (text == name(dtype)) return dtype;
  return std::nullopt;
}

inline float to_float(float x) { return x; }
inline float to_float(Bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
inline float to_float(F16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t exponent = (x.bits >> 10) & 0x1fu, mantissa = x.bits & 0x3ffu;
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24 is exact
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}
inline float to_float(F8 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x80u) << 24, magnitude = x.bits & 0x7fu;
  if (magnitude == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000u);
  // The bits of a float whose exponent is 120 too low, subnormals included; the product is exact.
  return std::bit_cast<float>(sign | magnitude << 20) * 0x1p120f;
}

// Rounds to nearest, ties to even. A NaN becomes a quiet NaN.
template <class T>
T from_float(float x);
template <>
inline float from_float<float>(float x) {
  return x;
}
template <>
inline Bf16 from_float<Bf16>(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}
template <>
inline F16 from_float<F16>(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu))};
  // Rounds to 65536 or beyond, which is infinity.
  if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};
  // Below 2^-14, adding 0.5 aligns the mantissa at 2^-24, and the FPU rounds to even.
  if (magnitude < 0x38800000u) {
    const uint32_t rounded = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
    return {static_cast<uint16_t>(sign | rounded)};
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return {static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}
// Magnitudes beyond 448, infinities included, become 448.
template <>
inline F8 from_float<F8>(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), magnitude = bits & 0x7fffffffu;
  const auto sign = static_cast<uint8_t>((bits >> 24) & 0x80u);
  if (magnitude > 0x7f800000u) return {static_cast<uint8_t>(sign | 0x7fu)};
  if (magnitude >= std::bit_cast<uint32_t>(kMaxF8)) return {static_cast<uint8_t>(sign | 0x7eu)};
  // Below 2^-6, adding 2^14 aligns the mantissa at 2^-9, and the FPU rounds to even.
  if (magnitude < std::bit_cast<uint32_t>(0x1p-6f)) {
    const float aligned = std::bit_cast<float>(magnitude) + 0x1p14f;
    return {static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(aligned) - std::bit_cast<uint32_t>(0x1p14f)))};
  }
  const uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
  return {static_cast<uint8_t>(sign | ((rounded >> 20) - (120u << 3)))};
}

// Calls f(T{}) with the C++ type of a DType's elements: with_float_type(dtype, [](auto zero) { ... }). Only for
// the three float types.
template <class F>
auto with_float_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kBf16:
      return f(Bf16{});
    case DType::kF16:
      return f(F16{});
    case DType::kF32:
    case DType::kI32:
    case DType::kF8:
      break;
  }
  return f(float{});
}

// Converts `count` elements between the three float types. Elements of equal types are copied bit for bit.
void convert(DType from, const void* source, DType to, void* target, size_t count);

}  // namespace lfm2
