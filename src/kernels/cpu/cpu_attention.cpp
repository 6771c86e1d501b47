// qk_norm_rope and attention: each token and head alone.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_ops.h"

namespace lfm2 {

namespace {

void check_qkv(const Tensor& qkv, AttentionShape shape, const Batch& batch) {
  expect(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0 && shape.head_dim % 2 == 0, "attention: heads");
  expect(qkv.rank == 2 && qkv.dim(0) == batch.tokens && qkv.dim(1) == shape.qkv_columns(), "attention: qkv");
  expect(batch.positions.dtype == DType::kI32 && batch.positions.numel() == batch.tokens, "attention: positions");
}

// scores = exp(scale * scores - the largest): the softmax before its division by the returned sum.
double exponentiate(const Simd& simd, float* scores, int64_t count, float scale) {
  float largest = scores[0] * scale;
  for (int64_t i = 0; i < count; ++i) {
    scores[i] *= scale;
    largest = std::max(largest, scores[i]);
  }
  for (int64_t i = 0; i < count; ++i) scores[i] -= largest;
  simd.exponentials(scores, scores, static_cast<size_t>(count));
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(scores[i]);
  return sum;
}

}  // namespace

void CpuOps::qk_norm_rope(const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight, float eps,
                          float rope_theta, AttentionShape shape, const Batch& batch) {
  check_qkv(qkv, shape, batch);
  const int64_t d = shape.head_dim, half = d / 2;
  expect(q_weight.numel() == d && k_weight.numel() == d, "qk_norm_rope: weights");
  const float* in = as_float(qkv, activations_);
  const float* q_scale = as_float(q_weight, weights_);
  const float* k_scale = as_float(k_weight, more_weights_);
  const auto* positions = batch.positions.as<const int32_t>();
  rope_.extend(rope_theta, d, batch.max_length);
  with_float_type(qkv.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_each_row(batch.tokens, 4 * shape.qkv_columns(), [&](int64_t token) {
      expect(positions[token] >= 0 && positions[token] < batch.max_length,
             "qk_norm_rope: a position beyond max_length");
      const float* cosines = rope_.cosines(positions[token]);
      const float* sines = rope_.sines(positions[token]);
      for (int64_t head = 0; head < shape.heads + shape.kv_heads; ++head) {
        const float* scale = head < shape.heads ? q_scale : k_scale;
        const float* source = in + token * shape.qkv_columns() + head * d;
        T* target = qkv.as<T>() + token * shape.qkv_columns() + head * d;
        const float mean_square = simd_.dot(source, source, static_cast<size_t>(d)) / static_cast<float>(d);
        const float factor = 1.0f / std::sqrt(mean_square + eps);
        for (int64_t i = 0; i < half; ++i) {
          const float first = source[i] * factor * scale[i];
          const float second = source[half + i] * factor * scale[half + i];
          target[i] = from_float<T>(first * cosines[i] - second * sines[i]);
          target[half + i] = from_float<T>(second * cosines[i] + first * sines[i]);
        }
      }
    });
  });
}

void CpuOps::attention(const Tensor& qkv, AttentionShape shape, const Batch& batch, const Tensor& out) {
  check_qkv(qkv, shape, batch);
  const int64_t d = shape.head_dim, columns = shape.qkv_columns(), queries = shape.heads / shape.kv_heads;
  expect(out.dim(0) == batch.tokens && out.dim(1) == shape.heads * d && out.dtype == qkv.dtype, "attention: out");
  const Tensor heads_out = out.reshape({batch.tokens * shape.heads, d});
  const float* in = as_float(qkv, activations_);
  const auto* positions = batch.positions.as<const int32_t>();
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  // Per worker: the scores of the query heads that share a key head, and one head's result.
  const int64_t worker_floats = (queries * batch.max_length + d + 15) / 16 * 16;
  auto* scratch = scratch_.reserve<float>(pool_.threads() * static_cast<size_t>(worker_floats));

  pool_.parallel_for(static_cast<size_t>(batch.tokens), [&](size_t item, size_t worker) {
    const auto token = static_cast<int64_t>(item);
    const int64_t length = positions[token] + 1;  // keys: this token and all before it in its sample
    expect(length >= 1 && length <= batch.max_length && length <= token + 1, "attention: a position beyond its sample");
    float* scores = scratch + static_cast<int64_t>(worker) * worker_floats;  // [queries, length]
    float* head_out = scores + queries * length;
    for (int64_t kv = 0; kv < shape.kv_heads; ++kv) {
      const float* query = in + token * columns + kv * queries * d;
      const float* keys = in + (token + 1 - length) * columns + (shape.heads + kv) * d;
      const float* values = keys + shape.kv_heads * d;
      const auto stride = static_cast<size_t>(columns), width = static_cast<size_t>(d),
                 count = static_cast<size_t>(length);
      for (size_t key = 0; key < count; key += kDotColumns)
        simd_.dots({query, width, static_cast<size_t>(queries), keys + key * stride, stride,
                    std::min(kDotColumns, count - key), width, scores + key, count});
      for (int64_t q = 0; q < queries; ++q) {
        const double sum = exponentiate(simd_, scores + q * length, length, scale);
        simd_.mix({scores + q * length, values, count, stride, width, head_out});
        for (int64_t i = 0; i < d; ++i) head_out[i] = static_cast<float>(static_cast<double>(head_out[i]) / sum);
        convert(DType::kF32, head_out, out.dtype, heads_out.rows(token * shape.heads + kv * queries + q, 1).data,
                width);
      }
    }
  });
}

}  // namespace lfm2
