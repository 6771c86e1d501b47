// Checks and launcher arguments that several operators of the GPU share. Included by cuda_ops.cpp and
// cuda_cache_ops.cpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>

#include "kernels/cuda/attention/launch.h"
#include "kernels/cuda/common/limits.h"
#include "kernels/cuda/common/tensor_args.h"
#include "kernels/cuda/fused/launch.h"
#include "kernels/cuda/rows/launch.h"
#include "kernels/ops.h"

namespace lfm2 {

inline void check_norm(const Tensor& x, const Tensor& weight, const Tensor& out) {
  expect(x.rank == 2 && x.dim(1) == weight.numel() && out.dims == x.dims &&
             (out.dtype == x.dtype || (out.dtype == DType::kF8 && out.data != x.data)) && is_float(x) &&
             is_float(weight),
         "rms_norm: shapes");
}

// The memory of normed rows as a product with w reads them: in fp8 if w is.
inline Tensor rows_for(const Tensor& normed, const Tensor& w) {
  return w.dtype == DType::kF8 ? as_fp8_rows(normed, w.scales.group) : normed;
}

// The norm's arguments if a fused kernel can compute it before this product: one of few rows, with a norm weight of
// this type.
inline std::optional<FrontNormArgs> front_norm_args(const GemmArgs& product, DType act, const Tensor& norm_weight,
                                                    float eps) {
  if (product.m > kMaxFrontNormedRows || product.k > kMaxFrontNormedK || norm_weight.dtype != act ||
      !on_16_bytes(norm_weight))
    return std::nullopt;
  return FrontNormArgs{any(norm_weight), eps};
}

inline void check_qkv(const Tensor& qkv, AttentionShape shape, const Batch& batch) {
  expect(shape.kv_heads > 0 && shape.heads > 0 && shape.heads % shape.kv_heads == 0 && shape.head_dim % 2 == 0,
         "attention: heads");
  expect(shape.head_dim >= 2 && shape.head_dim <= kMaxHeadDim, "attention: the head dimension");
  expect(shape.heads / shape.kv_heads <= kMaxQueriesPerKey, "attention: query heads of a key head");
  expect(shape.kv_heads <= kMaxKeyHeads, "attention: key heads");
  expect(shape.window >= 0, "attention: the window");
  expect(qkv.rank == 2 && qkv.dim(0) == batch.tokens && qkv.dim(1) == shape.qkv_columns() && is_float(qkv),
         "attention: qkv");
  expect(batch.positions.dtype == DType::kI32 && batch.positions.numel() == batch.tokens, "attention: positions");
}

inline QkNormRopeArgs qk_norm_rope_args(const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight, float eps,
                                        AttentionShape shape, const Batch& batch) {
  check_qkv(qkv, shape, batch);
  expect(q_weight.numel() == shape.head_dim && k_weight.numel() == shape.head_dim, "qk_norm_rope: weights");
  return {.qkv = qkv.data,
          .columns = shape.qkv_columns(),
          .q_weight = any(q_weight),
          .k_weight = any(k_weight),
          .positions = batch.positions.as<const int32_t>(),
          .eps = eps,
          .tokens = batch.tokens,
          .heads = static_cast<int>(shape.heads),
          .kv_heads = static_cast<int>(shape.kv_heads),
          .head_dim = static_cast<int>(shape.head_dim)};
}

inline AppendKeysValuesArgs append_args(const Tensor& qkv, AttentionShape shape, const Batch& batch,
                                        const KeyPages& pages) {
  return {.qkv = qkv.data,
          .columns = shape.qkv_columns(),
          .positions = batch.positions.as<const int32_t>(),
          .pages = pages,
          .tokens = batch.tokens,
          .heads = static_cast<int>(shape.heads),
          .kv_heads = static_cast<int>(shape.kv_heads),
          .head_dim = static_cast<int>(shape.head_dim)};
}

inline AttentionArgs attention_args(const Tensor& qkv, AttentionShape shape, const Batch& batch, const Tensor& out) {
  return {.qkv = qkv.data,
          .columns = shape.qkv_columns(),
          .positions = batch.positions.as<const int32_t>(),
          .out = out.data,
          .tokens = batch.tokens,
          .heads = static_cast<int>(shape.heads),
          .kv_heads = static_cast<int>(shape.kv_heads),
          .head_dim = static_cast<int>(shape.head_dim),
          .scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim)),
          .output_tokens = static_cast<int>(batch.output_tokens),
          .window = shape.window == 0 ? kNoWindow : static_cast<int>(std::min<int64_t>(shape.window, kNoWindow))};
}

inline ShortConvArgs short_conv_args(const Tensor& bcz, const Tensor& weight, const Tensor& bias, const Batch& batch,
                                     const Tensor& out) {
  const int64_t hidden = weight.dim(0), length = hidden > 0 ? weight.numel() / hidden : 0;
  const bool rounds = out.dtype == DType::kF8;
  expect(bcz.dim(0) == batch.tokens && bcz.dim(1) == 3 * hidden && out.dim(0) == batch.tokens && out.dim(1) == hidden &&
             (rounds || out.dtype == bcz.dtype) && (!bias || bias.numel() == hidden) && length > 0 &&
             hidden <= kMaxConvChannels,
         "short_conv: shapes");
  expect(!rounds || (short_conv_rounds(hidden, length, bcz.dtype) && on_16_bytes(bcz) && on_16_bytes(weight) &&
                     on_16_bytes(bias) && on_16_bytes(out)),
         "short_conv: fp8 rows");
  expect(batch.positions.dtype == DType::kI32 && batch.positions.numel() == batch.tokens, "short_conv: positions");
  return {.bcz = bcz.data,
          .weight = any(weight),
          .bias = any(bias),
          .positions = batch.positions.as<const int32_t>(),
          .out = rounds ? nullptr : out.data,
          .tokens = batch.tokens,
          .hidden = hidden,
          .taps = length,
          .rounded = rounded_rows(out)};
}

}  // namespace lfm2
