// How keys and values are rounded to fp8 for the KV cache, with the same bits on CPU and GPU.
//
// The keys of a token's key head share a scale s, and so do its values. s is a power of two, the smallest for which
// max|x| / s rounds to at most 448, within the bounds below. An element becomes s · E4M3(x / s). fp32, bf16 and fp16
// hold that exactly, so attention over rounded elements and attention over cached bytes have the same bits. Rounding a
// head again changes nothing. Infinities and NaN become NaN and do not count in max|x|.
//
// A scale is stored as the byte e that stands for 2^(e − 127): E8M0 of the OCP Microscaling Formats (MX) Specification
// 1.0.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/dtype.h"
#include "base/host_device.h"

namespace lfm2 {

constexpr int kScaleBias = 127;
// The lower bound: the smallest elements, 2^-9 s, must be numbers of fp16.
constexpr int kMinScaleExponent = kScaleBias - 15;
// The upper bound: the largest elements, 448 s, must be numbers of the type. Larger elements become 448 s.
constexpr int max_scale_exponent(DType act) { return kScaleBias + (act == DType::kF16 ? 15 : 127) - 8; }

// The byte of the scale for a head whose largest finite magnitude is `largest`.
LFM2_HOST_DEVICE inline int scale_exponent(float largest, int max_exponent) {
  uint32_t bits = 0;
  std::memcpy(&bits, &largest, sizeof bits);
  // 464 = 1.8125 · 2^8 is the largest number that rounds to 448, so mantissas above 1.8125 carry.
  constexpr uint32_t kCarry = 0x7fffff - 0x680000;
  const int exponent = static_cast<int>((bits + kCarry) >> 23) - 8;
  return exponent < kMinScaleExponent ? kMinScaleExponent : exponent > max_exponent ? max_exponent : exponent;
}

// 2^(exponent − 127), for an exponent from 1 to 254.
LFM2_HOST_DEVICE inline float scale_of(int exponent) {
  const uint32_t bits = static_cast<uint32_t>(exponent) << 23;
  float scale = 0;
  std::memcpy(&scale, &bits, sizeof scale);
  return scale;
}
// 1 / scale_of(exponent).
LFM2_HOST_DEVICE inline float inverse_scale_of(int exponent) { return scale_of(2 * kScaleBias - exponent); }

}  // namespace lfm2
