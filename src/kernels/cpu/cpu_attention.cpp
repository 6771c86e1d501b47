// qk_norm_rope, and attention with and without cached keys and values: each token and head is computed separately.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/scaled_elements.h"
#include "kernels/fp8_cache.h"

namespace lfm2 {

namespace {

void check_qkv(const Tensor& qkv, AttentionShape shape, const Batch& batch) {
  expect(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0 && shape.head_dim % 2 == 0, "attention: heads");
  expect(qkv.rank == 2 && qkv.dim(0) == batch.tokens && qkv.dim(1) == shape.qkv_columns(), "attention: qkv");
  expect(batch.positions.dtype == DType::kI32 && batch.positions.numel() == batch.tokens, "attention: positions");
}

// Replaces the scores by exp(scale * score - the largest of these products), and returns their sum, by which the caller
// divides.
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

// The query heads of one token that share a key head, with the keys and values of all positions that the token reads.
struct HeadGroup {
  const float* query = nullptr;                    // [queries, d]
  const float *keys = nullptr, *values = nullptr;  // [length, d]: rows are `stride` elements apart
  size_t queries = 0, d = 0, length = 0, stride = 0;
  size_t scratch_floats() const { return queries * length + d; }
};

// Writes out [queries, d] of type `type`. scratch holds the scores and the sums.
void attend(const Simd& simd, const HeadGroup& group, float* scratch, DType type, std::byte* out) {
  const size_t length = group.length, d = group.d;
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  float* scores = scratch;  // [queries, length]
  float* head_out = scratch + group.queries * length;
  for (size_t key = 0; key < length; key += kDotColumns)
    simd.dots({group.query, d, group.queries, group.keys + key * group.stride, group.stride,
               std::min(kDotColumns, length - key), d, scores + key, length});
  for (size_t q = 0; q < group.queries; ++q) {
    const double sum = exponentiate(simd, scores + q * length, static_cast<int64_t>(length), scale);
    simd.mix({scores + q * length, group.values, length, group.stride, d, head_out});
    for (size_t i = 0; i < d; ++i) head_out[i] = static_cast<float>(static_cast<double>(head_out[i]) / sum);
    convert(DType::kF32, head_out, type, out + q * d * size_bytes(type), d);
  }
}

// The number of keys that the token at this position reads.
int64_t keys_of(AttentionShape shape, int64_t position) {
  return shape.window == 0 ? position + 1 : std::min(shape.window, position + 1);
}

// A group without its pointers; rows of keys are `stride` elements apart.
HeadGroup group_of(AttentionShape shape, int64_t length, int64_t stride) {
  HeadGroup group;
  group.queries = static_cast<size_t>(shape.heads / shape.kv_heads);
  group.d = static_cast<size_t>(shape.head_dim);
  group.length = static_cast<size_t>(length);
  group.stride = static_cast<size_t>(stride);
  return group;
}

// Whether a token of a whole sample precedes the last `output_tokens` ones, so that its result is not needed.
bool is_not_output(const Batch& batch, int64_t token) {
  const auto* positions = batch.positions.as<const int32_t>();
  return batch.output_tokens > 0 && token + batch.output_tokens < batch.tokens &&
         positions[token + batch.output_tokens] == positions[token] + batch.output_tokens;
}

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

// Rounded up, so that each worker's scratch starts at a cache line.
constexpr int64_t whole_lines(size_t floats) { return static_cast<int64_t>((floats + 15) / 16 * 16); }

void check_cache(const Tensor& qkv, AttentionShape shape, const Batch& batch, const KeyValueCache& cache) {
  check_qkv(qkv, shape, batch);
  const Tensor& keys = cache.keys;
  expect(keys.rank == 4 && keys.dim(2) == shape.kv_heads && keys.dim(3) == shape.head_dim &&
             keys.dtype == (shape.fp8_cache ? DType::kF8 : qkv.dtype) && cache.values.dims == keys.dims &&
             cache.values.dtype == keys.dtype,
         "KeyValueCache: shapes");
  expect(!shape.fp8_cache || (cache.key_scales != nullptr && cache.value_scales != nullptr), "KeyValueCache: scales");
  expect(batch.offsets.numel() == batch.sequences + 1 && batch.sequence_of.numel() == batch.tokens &&
             batch.page_table.rank == 2 && batch.page_table.dim(0) == batch.sequences,
         "Batch: no caches");
}

// The row of this position in the cache, seen as [pages * page_size, kv_heads * head_dim].
int64_t cache_row(const Batch& batch, const KeyValueCache& cache, int64_t sequence, int64_t position) {
  const int64_t pages = cache.keys.dim(0), page_size = cache.keys.dim(1), width = batch.page_table.dim(1);
  expect(sequence >= 0 && sequence < batch.sequences, "KeyValueCache: a sequence that does not exist");
  expect(position >= 0 && position / page_size < width, "KeyValueCache: a position beyond the page table");
  const int32_t id = batch.page_table.as<const int32_t>()[sequence * width + position / page_size];
  expect(id >= 0 && id < pages, "KeyValueCache: a page that does not exist");
  return id * page_size + position % page_size;
}

// Reads `count` rows of the cache's heads [rows, d] from `row` on, `step` rows apart, as fp32.
void read_heads(const Simd& simd, const Tensor& heads, const uint8_t* scales, int64_t row, int64_t step, int64_t count,
                float* values) {
  const int64_t d = heads.dim(1);
  if (heads.dtype != DType::kF8)
    return simd.widen({.data = heads.rows(row, 1).data,
                       .type = heads.dtype,
                       .stride = static_cast<size_t>(step * d),
                       .rows = static_cast<size_t>(count),
                       .k = static_cast<size_t>(d)},
                      values);
  for (int64_t i = 0; i < count; ++i, row += step)
    scale_elements(heads.as<const F8>() + row * d, d, scale_of(scales[row]), values + i * d);
}

// Whether this sequence and the one before have one token each, at the same position or at neighbouring ones, and read
// the same pages up to the first of these. So are the rows of a draft block.
bool shares_keys(AttentionShape shape, const Batch& batch, int64_t page_size, int64_t sequence) {
  const int32_t* token = batch.offsets.as<const int32_t>() + sequence;  // of this sequence
  if (token[0] - token[-1] != 1 || token[1] - token[0] != 1) return false;
  const auto* position = batch.positions.as<const int32_t>() + token[0];
  if (position[0] - position[-1] != 0 && position[0] - position[-1] != 1) return false;
  const int64_t width = batch.page_table.dim(1);
  const int64_t first = (position[-1] + 1 - keys_of(shape, position[-1])) / page_size;
  const int64_t end = position[-1] / page_size + 1;
  const auto* pages = batch.page_table.as<const int32_t>() + sequence * width;
  return first >= 0 && end <= width && std::equal(pages + first, pages + end, pages + first - width);
}

}  // namespace

const RopeTable& CpuOps::rope_table(const Rope& rope, int64_t head_dim, int64_t positions) {
  auto found = std::ranges::find_if(ropes_, [&](const RopeTable& table) { return table.is_of(rope, head_dim); });
  if (found == ropes_.end()) found = ropes_.emplace(found, rope, head_dim);
  found->extend(positions);
  return *found;
}

void CpuOps::qk_norm_rope(const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight, float eps,
                          const Rope& rope, AttentionShape shape, const Batch& batch) {
  check_qkv(qkv, shape, batch);
  const int64_t d = shape.head_dim, half = d / 2;
  expect(q_weight.numel() == d && k_weight.numel() == d, "qk_norm_rope: weights");
  const float* in = as_float(qkv, activations_);
  const float* q_scale = as_float(q_weight, weights_);
  const float* k_scale = as_float(k_weight, more_weights_);
  const auto* positions = batch.positions.as<const int32_t>();
  const RopeTable& turns = rope_table(rope, d, batch.max_length);
  with_float_type(qkv.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_each_row(batch.tokens, 4 * shape.qkv_columns(), [&](int64_t token) {
      expect(positions[token] >= 0 && positions[token] < batch.max_length,
             "qk_norm_rope: a position beyond max_length");
      const float* cosines = turns.cosines(positions[token]);
      const float* sines = turns.sines(positions[token]);
      for (int64_t head = 0; head < shape.heads + shape.kv_heads; ++head) {
        const float* scale = head < shape.heads ? q_scale : k_scale;
        const float* source = in + token * shape.qkv_columns() + head * d;
        T* target = qkv.as<T>() + token * shape.qkv_columns() + head * d;
        const float factor = norm_factor(source, d, eps);
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

void CpuOps::attention(const Tensor& qkv, AttentionShape shape, const Batch& batch, const Tensor& out) {
  check_qkv(qkv, shape, batch);
  const int64_t d = shape.head_dim, columns = shape.qkv_columns(), queries = shape.heads / shape.kv_heads;
  expect(out.dim(0) == batch.tokens && out.dim(1) == shape.heads * d && out.dtype == qkv.dtype, "attention: out");
  const Tensor heads_out = out.reshape({batch.tokens * shape.heads, d});
  const float* in = as_float(qkv, activations_);
  const auto* positions = batch.positions.as<const int32_t>();
  const HeadGroup largest = group_of(shape, keys_of(shape, batch.max_length - 1), columns);
  const int64_t worker_floats = whole_lines(largest.scratch_floats());
  auto* scratch = scratch_.reserve<float>(pool_.threads() * static_cast<size_t>(worker_floats));

  pool_.parallel_for(static_cast<size_t>(batch.tokens), [&](size_t item, size_t worker) {
    const auto token = static_cast<int64_t>(item);
    if (is_not_output(batch, token)) return;
    expect(positions[token] >= 0 && positions[token] < batch.max_length && positions[token] <= token,
           "attention: a position beyond its sample");
    const int64_t length = keys_of(shape, positions[token]);
    HeadGroup group = largest;
    group.length = static_cast<size_t>(length);
    for (int64_t kv = 0; kv < shape.kv_heads; ++kv) {
      group.query = in + token * columns + kv * queries * d;
      group.keys = in + (token + 1 - length) * columns + (shape.heads + kv) * d;
      group.values = group.keys + shape.kv_heads * d;
      attend(simd_, group, scratch + static_cast<int64_t>(worker) * worker_floats, out.dtype,
             heads_out.rows(token * shape.heads + kv * queries, queries).data);
    }
  });
}

void CpuOps::append_keys_values(const Tensor& qkv, AttentionShape shape, const Batch& batch,
                                const KeyValueCache& cache) {
  check_cache(qkv, shape, batch, cache);
  const int64_t row = shape.kv_heads * shape.head_dim;
  if (shape.fp8_cache) return append_fp8(qkv, shape, batch, cache);
  const size_t bytes = static_cast<size_t>(row) * size_bytes(qkv.dtype);
  const auto* positions = batch.positions.as<const int32_t>();
  const auto* sequence_of = batch.sequence_of.as<const int32_t>();
  for_each_row(batch.tokens, 2 * row, [&](int64_t token) {
    const auto target = static_cast<size_t>(cache_row(batch, cache, sequence_of[token], positions[token])) * bytes;
    const std::byte* keys =
        qkv.rows(token, 1).data + static_cast<size_t>(shape.heads * shape.head_dim) * size_bytes(qkv.dtype);
    std::memcpy(cache.keys.data + target, keys, bytes);
    std::memcpy(cache.values.data + target, keys + bytes, bytes);
  });
}

void CpuOps::append_fp8(const Tensor& qkv, AttentionShape shape, const Batch& batch, const KeyValueCache& cache) {
  const int64_t d = shape.head_dim, heads = shape.kv_heads;
  const auto* positions = batch.positions.as<const int32_t>();
  const auto* sequence_of = batch.sequence_of.as<const int32_t>();
  with_float_type(qkv.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_each_row(batch.tokens, 4 * heads * d, [&](int64_t token) {
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

void CpuOps::qk_norm_rope_append(const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight, float eps,
                                 const Rope& rope, AttentionShape shape, const Batch& batch,
                                 const KeyValueCache& cache) {
  qk_norm_rope(qkv, q_weight, k_weight, eps, rope, shape, batch);
  append_keys_values(qkv, shape, batch, cache);
}

// Cuts the batch's output tokens into ranges, so that several threads can share a long run of one sequence. Each range
// gathers its keys again, which costs little compared with the products of its tokens with them. Rows of a draft block
// share a range, as far as each thread still gets one.
constexpr int64_t kRangeTokens = 16;
void CpuOps::cut_tokens(AttentionShape shape, const Batch& batch, int64_t page_size) {
  token_ranges_.clear();
  const auto* offsets = batch.offsets.as<const int32_t>();
  const int64_t most_rows =
      std::clamp<int64_t>(batch.sequences * shape.kv_heads / static_cast<int64_t>(pool_.threads()), 1, kRangeTokens);
  for (int64_t sequence = 0; sequence < batch.sequences; ++sequence) {
    const int64_t end = offsets[sequence + 1];
    int64_t first = offsets[sequence];
    if (batch.output_tokens > 0) first = std::max(first, end - batch.output_tokens);
    if (sequence > 0 && token_ranges_.back().end - token_ranges_.back().first < most_rows &&
        shares_keys(shape, batch, page_size, sequence)) {
      token_ranges_.back() = {sequence, token_ranges_.back().first, end};
      continue;
    }
    for (; first < end; first += kRangeTokens)
      token_ranges_.push_back({sequence, first, std::min(first + kRangeTokens, end)});
  }
}

void CpuOps::cached_attention(const Tensor& qkv, AttentionShape shape, const Batch& batch, const KeyValueCache& cache,
                              const Tensor& out) {
  check_cache(qkv, shape, batch, cache);
  const int64_t d = shape.head_dim, columns = shape.qkv_columns(), queries = shape.heads / shape.kv_heads;
  expect(out.dim(0) == batch.tokens && out.dim(1) == shape.heads * d && out.dtype == qkv.dtype,
         "cached_attention: out");
  const Tensor heads_out = out.reshape({batch.tokens * shape.heads, d});
  const Tensor key_heads = cache.keys.reshape({cache.keys.numel() / d, d});
  const Tensor value_heads = cache.values.reshape({cache.values.numel() / d, d});
  const float* in = as_float(qkv, activations_);
  const auto* positions = batch.positions.as<const int32_t>();
  const int64_t page_size = cache.keys.dim(1);
  cut_tokens(shape, batch, page_size);
  const HeadGroup largest = group_of(shape, keys_of(shape, batch.max_length - 1), d);
  // Scratch of a worker: the keys and then the values of one head as fp32, then what attend() needs.
  const int64_t head_floats = std::min(batch.max_length, static_cast<int64_t>(largest.length) + kRangeTokens - 1) * d;
  const int64_t worker_floats = whole_lines(static_cast<size_t>(2 * head_floats) + largest.scratch_floats());
  auto* scratch = scratch_.reserve<float>(pool_.threads() * static_cast<size_t>(worker_floats));

  pool_.parallel_for(token_ranges_.size() * static_cast<size_t>(shape.kv_heads), [&](size_t item, size_t worker) {
    const TokenRange& range = token_ranges_[item / static_cast<size_t>(shape.kv_heads)];
    const auto kv = static_cast<int64_t>(item) % shape.kv_heads;
    // The positions that the range's tokens read: from the first key of the first token to the last token itself.
    const int64_t end = positions[range.end - 1] + 1, first_token = positions[range.first];
    expect(first_token >= 0 && first_token < end && end <= batch.max_length,
           "cached_attention: a position beyond its sample");
    const int64_t first = first_token + 1 - keys_of(shape, first_token);
    float* keys = scratch + static_cast<int64_t>(worker) * worker_floats;
    float* values = keys + head_floats;
    for (int64_t position = first, in_page; position < end; position += in_page) {
      in_page = std::min(page_size - position % page_size, end - position);
      const int64_t row = cache_row(batch, cache, range.sequence, position) * shape.kv_heads + kv;
      for (const bool of_values : {false, true})
        read_heads(simd_, of_values ? value_heads : key_heads, of_values ? cache.value_scales : cache.key_scales, row,
                   shape.kv_heads, in_page, (of_values ? values : keys) + (position - first) * d);
    }
    HeadGroup group = largest;
    for (int64_t token = range.first; token < range.end; ++token) {
      const int64_t step = token == range.first ? 0 : positions[token] - positions[token - 1];
      expect(step == 0 || step == 1, "cached_attention: positions with a gap");
      const int64_t length = keys_of(shape, positions[token]);
      group.query = in + token * columns + kv * queries * d;
      group.keys = keys + (positions[token] + 1 - length - first) * d;
      group.values = values + (group.keys - keys);
      group.length = static_cast<size_t>(length);
      attend(simd_, group, values + head_floats, out.dtype,
             heads_out.rows(token * shape.heads + kv * queries, queries).data);
    }
  });
}

}  // namespace lfm2
