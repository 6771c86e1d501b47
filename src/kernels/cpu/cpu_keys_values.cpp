// qk_norm_rope, and the way of keys and values into the cache: each token and head is computed separately.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/cache_rows.h"
#include "kernels/cpu/cpu_attention.h"
#include "kernels/cpu/fp32_rows.h"
#include "kernels/fp8_cache.h"

namespace lfm2 {

namespace {

// The scale that a head of keys or of values has in fp8, and its elements.
class HeadScale {
 public:
  // head [d] of type `act`
  template <class T>
  HeadScale(const T* head, int64_t d, DType act) {
    float largest = 0;
    for (int64_t i = 0; i < d; ++i) {
      const float magnitude = std::fabs(to_float(head[i]));
      if (std::isfinite(magnitude)) largest = std::max(largest, magnitude);
    }
    exponent_ = scale_exponent(largest, max_scale_exponent(act));
  }
  uint8_t exponent() const { return static_cast<uint8_t>(exponent_); }
  F8 rounded(float x) const {
    return from_float<F8>(std::isfinite(x) ? x * inverse_scale_of(exponent_) : std::numeric_limits<float>::quiet_NaN());
  }
  float value(F8 element) const { return to_float(element) * scale_of(exponent_); }

 private:
  int exponent_;
};

}  // namespace

const RopeTable& CpuAttention::rope_table(const Rope& rope, int64_t head_dim, int64_t positions) {
  auto found = std::ranges::find_if(ropes_, [&](const RopeTable& table) { return table.is_of(rope, head_dim); });
  if (found == ropes_.end()) found = ropes_.emplace(found, rope, head_dim);
  found->extend(positions);
  return *found;
}

void CpuAttention::qk_norm_rope(const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight, float eps,
                                const Rope& rope, AttentionShape shape, const Batch& batch) {
  check_qkv(qkv, shape, batch);
  const int64_t d = shape.head_dim, half = d / 2;
  expect(q_weight.numel() == d && k_weight.numel() == d, "qk_norm_rope: weights");
  const float* in = as_float(pool_, simd_, qkv, qkv_);
  const float* q_scale = as_float(pool_, simd_, q_weight, q_weight_);
  const float* k_scale = as_float(pool_, simd_, k_weight, k_weight_);
  const auto* positions = batch.positions.as<const int32_t>();
  const RopeTable& turns = rope_table(rope, d, batch.max_length);
  with_float_type(qkv.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_each_row(pool_, batch.tokens, 4 * shape.qkv_columns(), [&](int64_t token) {
      expect(positions[token] >= 0 && positions[token] < batch.max_length,
             "qk_norm_rope: a position beyond max_length");
      const float* cosines = turns.cosines(positions[token]);
      const float* sines = turns.sines(positions[token]);
      for (int64_t head = 0; head < shape.heads + shape.kv_heads; ++head) {
        const float* scale = head < shape.heads ? q_scale : k_scale;
        const float* source = in + token * shape.qkv_columns() + head * d;
        T* target = qkv.as<T>() + token * shape.qkv_columns() + head * d;
        const float factor = norm_factor(simd_, source, d, eps);
        for (int64_t i = 0; i < half; ++i) {
          const float first = source[i] * factor * scale[i];
          const float second = source[half + i] * factor * scale[half + i];
          target[i] = from_float<T>(first * cosines[i] - second * sines[i]);
          target[half + i] = from_float<T>(second * cosines[i] + first * sines[i]);
        }
      }
      if (!shape.fp8_cache) return;
      for (int64_t head = shape.heads; head < shape.heads + 2 * shape.kv_heads; ++head) {
        T* const elements = qkv.as<T>() + token * shape.qkv_columns() + head * d;
        const HeadScale scale(elements, d, qkv.dtype);
        for (int64_t i = 0; i < d; ++i) elements[i] = from_float<T>(scale.value(scale.rounded(to_float(elements[i]))));
      }
    });
  });
}

void CpuAttention::append_keys_values(const Tensor& qkv, AttentionShape shape, const Batch& batch,
                                      const KeyValueCache& cache) {
  check_cache(qkv, shape, batch, cache);
  const int64_t row = shape.kv_heads * shape.head_dim;
  if (shape.fp8_cache) return append_fp8(qkv, shape, batch, cache);
  const size_t bytes = static_cast<size_t>(row) * size_bytes(qkv.dtype);
  const auto* positions = batch.positions.as<const int32_t>();
  const auto* sequence_of = batch.sequence_of.as<const int32_t>();
  for_each_row(pool_, batch.tokens, 2 * row, [&](int64_t token) {
    const auto target = static_cast<size_t>(cache_row(batch, cache, sequence_of[token], positions[token])) * bytes;
    const std::byte* keys =
        qkv.rows(token, 1).data + static_cast<size_t>(shape.heads * shape.head_dim) * size_bytes(qkv.dtype);
    std::memcpy(cache.keys.data + target, keys, bytes);
    std::memcpy(cache.values.data + target, keys + bytes, bytes);
  });
}

void CpuAttention::append_fp8(const Tensor& qkv, AttentionShape shape, const Batch& batch, const KeyValueCache& cache) {
  const int64_t d = shape.head_dim, heads = shape.kv_heads;
  const auto* positions = batch.positions.as<const int32_t>();
  const auto* sequence_of = batch.sequence_of.as<const int32_t>();
  with_float_type(qkv.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_each_row(pool_, batch.tokens, 4 * heads * d, [&](int64_t token) {
      const int64_t row = cache_row(batch, cache, sequence_of[token], positions[token]);
      for (int64_t head = 0; head < 2 * heads; ++head) {  // those of keys, then those of values
        const T* elements = qkv.as<T>() + token * shape.qkv_columns() + (shape.heads + head) * d;
        const bool is_key = head < heads;
        const int64_t to = row * heads + head % heads;
        F8* target = (is_key ? cache.keys : cache.values).as<F8>() + to * d;
        const HeadScale scale(elements, d, qkv.dtype);
        for (int64_t i = 0; i < d; ++i) target[i] = scale.rounded(to_float(elements[i]));
        (is_key ? cache.key_scales : cache.value_scales)[to] = scale.exponent();
      }
    });
  });
}

}  // namespace lfm2
