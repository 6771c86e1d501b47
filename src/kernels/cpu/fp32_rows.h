// Rows as fp32, and the factor of their RMS norm: what several operators of the CPU begin with.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/cpu/for_each_row.h"
#include "kernels/cpu/growing_buffer.h"
#include "kernels/cpu/simd/simd.h"

namespace lfm2 {

// The elements as fp32: x itself if it is fp32, otherwise a copy in `buffer`; null for an empty tensor.
inline const float* as_float(ThreadPool& pool, const Simd& simd, const Tensor& x, GrowingBuffer& buffer) {
  if (x.dtype == DType::kF32) return x.as<const float>();
  constexpr int64_t kPiece = 16384;
  const int64_t count = x.numel();
  auto* copy = buffer.reserve<float>(static_cast<size_t>(count));
  for_each_row(pool, (count + kPiece - 1) / kPiece, kPiece, [&](int64_t piece) {
    const int64_t first = piece * kPiece;
    const auto numel = static_cast<size_t>(std::min(kPiece, count - first));
    simd.widen({.data = x.data + static_cast<size_t>(first) * size_bytes(x.dtype),
                .type = x.dtype,
                .stride = numel,
                .rows = 1,
                .k = numel},
               copy + first);
  });
  return copy;
}

// 1 / sqrt(mean(x^2) + eps) of n elements
inline float norm_factor(const Simd& simd, const float* x, int64_t n, float eps) {
  return 1.0f / std::sqrt(simd.dot(x, x, static_cast<size_t>(n)) / static_cast<float>(n) + eps);
}

}  // namespace lfm2
