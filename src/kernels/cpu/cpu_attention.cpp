// Attention with and without cached keys and values: each token and head is computed separately.
#include "kernels/cpu/cpu_attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/cache_rows.h"
#include "kernels/cpu/fp32_rows.h"
#include "kernels/cpu/scaled_elements.h"
#include "kernels/fp8_cache.h"

namespace lfm2 {

namespace {

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

// Rounded up, so that each worker's scratch starts at a cache line.
constexpr int64_t whole_lines(size_t floats) { return static_cast<int64_t>((floats + 15) / 16 * 16); }

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

void CpuAttention::attention(const Tensor& qkv, AttentionShape shape, const Batch& batch, const Tensor& out) {
  check_qkv(qkv, shape, batch);
  const int64_t d = shape.head_dim, columns = shape.qkv_columns(), queries = shape.heads / shape.kv_heads;
  expect(out.dim(0) == batch.tokens && out.dim(1) == shape.heads * d && out.dtype == qkv.dtype, "attention: out");
  const Tensor heads_out = out.reshape({batch.tokens * shape.heads, d});
  const float* in = as_float(pool_, simd_, qkv, qkv_);
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

// Cuts the batch's output tokens into ranges, so that several threads can share a long run of one sequence. Each range
// gathers its keys again, which costs little compared with the products of its tokens with them. Rows of a draft block
// share a range, as far as each thread still gets one.
constexpr int64_t kRangeTokens = 16;
void CpuAttention::cut_tokens(AttentionShape shape, const Batch& batch, int64_t page_size) {
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

void CpuAttention::cached_attention(const Tensor& qkv, AttentionShape shape, const Batch& batch,
                                    const KeyValueCache& cache, const Tensor& out) {
  check_cache(qkv, shape, batch, cache);
  const int64_t d = shape.head_dim, columns = shape.qkv_columns(), queries = shape.heads / shape.kv_heads;
  expect(out.dim(0) == batch.tokens && out.dim(1) == shape.heads * d && out.dtype == qkv.dtype,
         "cached_attention: out");
  const Tensor heads_out = out.reshape({batch.tokens * shape.heads, d});
  const Tensor key_heads = cache.keys.reshape({cache.keys.numel() / d, d});
  const Tensor value_heads = cache.values.reshape({cache.values.numel() / d, d});
  const float* in = as_float(pool_, simd_, qkv, qkv_);
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
