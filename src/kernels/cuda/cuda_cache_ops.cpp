// The operators of generation on the GPU: appending to the caches, reading them, drawing tokens.
#include <limits>

#include "kernels/cuda/attention/launch.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/fused/few_fp8_rows.h"
#include "kernels/cuda/op_checks.h"
#include "kernels/cuda/sampling/launch.h"
#include "kernels/sampling.h"

namespace lfm2 {

namespace {

void check_cached(const Batch& batch) {
  expect(batch.offsets.dtype == DType::kI32 && batch.offsets.numel() == batch.sequences + 1 &&
             batch.sequence_of.dtype == DType::kI32 && batch.sequence_of.numel() == batch.tokens &&
             batch.singles >= 0 && batch.singles <= batch.sequences && batch.singles <= batch.tokens,
         "a batch with caches: its sequences");
}

KeyPages key_pages(const Tensor& qkv, AttentionShape shape, const Batch& batch, const KeyValueCache& cache) {
  check_cached(batch);
  const DType held = shape.fp8_cache ? DType::kF8 : qkv.dtype;
  expect(cache.keys.rank == 4 && cache.keys.dims == cache.values.dims && cache.keys.dtype == held &&
             cache.values.dtype == held && cache.keys.dim(2) == shape.kv_heads && cache.keys.dim(3) == shape.head_dim &&
             cache.keys.dim(1) > 0 && (cache.key_scales != nullptr) == shape.fp8_cache &&
             (cache.value_scales != nullptr) == shape.fp8_cache,
         "cached attention: the cache");
  expect(cache.keys.dim(0) * cache.keys.dim(1) <= std::numeric_limits<int32_t>::max(),
         "cached attention: more positions in the cache than an int32 counts");
  expect(
      batch.page_table.dtype == DType::kI32 && batch.page_table.rank == 2 && batch.page_table.dim(0) == batch.sequences,
      "cached attention: the page table");
  return {.keys = cache.keys.data,
          .values = cache.values.data,
          .page_table = batch.page_table.as<const int32_t>(),
          .sequence_of = batch.sequence_of.as<const int32_t>(),
          .offsets = batch.offsets.as<const int32_t>(),
          .max_pages = static_cast<int>(batch.page_table.dim(1)),
          .page_size = static_cast<int>(cache.keys.dim(1)),
          .pages = cache.keys.dim(0),
          .singles = batch.singles,
          .key_scales = cache.key_scales,
          .value_scales = cache.value_scales};
}

// Attention of the tokens after the singles, if all their sequences begin in this batch: they are whole samples, whose
// keys and values are in qkv. Reading them there avoids converting them from fp8.
AttentionArgs samples_after_singles(AttentionArgs args, const Tensor& qkv, const Tensor& out, int64_t singles) {
  args.qkv = qkv.rows(singles, args.tokens - singles).data;
  args.out = out.rows(singles, args.tokens - singles).data;
  args.positions += singles;
  args.tokens -= singles;
  args.pages = {};
  return args;
}

}  // namespace

void CudaOps::append_keys_values(const Tensor& qkv, AttentionShape shape, const Batch& batch,
                                 const KeyValueCache& cache) {
  check_qkv(qkv, shape, batch);
  const AppendKeysValuesArgs args = append_args(qkv, shape, batch, key_pages(qkv, shape, batch, cache));
  if (shape.fp8_cache) return launch_round_keys_values(stream_, args, qkv.dtype);
  launch_append_keys_values(stream_, args, qkv.dtype);
}

void CudaOps::qk_norm_rope_append(const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight, float eps,
                                  const Rope& rope, AttentionShape shape, const Batch& batch,
                                  const KeyValueCache& cache) {
  const QkNormRopeArgs args = qk_norm_rope_args(qkv, q_weight, k_weight, eps, shape, batch);
  if (launch_qk_norm_rope_append(stream_, args, frequencies(rope, shape.head_dim), key_pages(qkv, shape, batch, cache),
                                 qkv.dtype))
    return;
  qk_norm_rope(qkv, q_weight, k_weight, eps, rope, shape, batch);
  append_keys_values(qkv, shape, batch, cache);
}

void CudaOps::cached_attention(const Tensor& qkv, AttentionShape shape, const Batch& batch, const KeyValueCache& cache,
                               const Tensor& out) {
  check_qkv(qkv, shape, batch);
  expect(out.dim(0) == batch.tokens && out.dim(1) == shape.heads * shape.head_dim && out.dtype == qkv.dtype,
         "cached attention: out");
  expect(batch.max_length > 0 || batch.tokens == 0, "cached attention: the longest sequence");
  AttentionArgs args = attention_args(qkv, shape, batch, out);
  args.pages = key_pages(qkv, shape, batch, cache);
  const CachedAttentionDecodeArgs singles{.attention = args,
                                          .max_length = batch.max_length,
                                          .partials = reinterpret_cast<float*>(workspaces_.decode_partials.data()),
                                          .partial_floats = kDecodePartialFloats,
                                          .counters = reinterpret_cast<int32_t*>(workspaces_.decode_counters.data()),
                                          .multiprocessors = multiprocessors_};
  if (qkv.dtype == DType::kF32)
    launch_cached_attention_decode_simt(stream_, singles);
  else
    launch_cached_attention_decode_mma(stream_, singles, qkv.dtype);
  if (shape.fp8_cache && batch.all_begin) args = samples_after_singles(args, qkv, out, batch.singles);
  attend(args, qkv.dtype, batch.max_length);
}

namespace {

CachedConvArgs cached_conv_args(const ShortConvArgs& args, const Batch& batch, const ConvCache& cache) {
  check_cached(batch);
  const Tensor& states = cache.states;
  expect(batch.states.dtype == DType::kI32 && batch.states.numel() == 2 * batch.sequences &&
             (!batch.here || (batch.here.dtype == DType::kI32 && batch.here.numel() == batch.sequences)),
         "cached_short_conv: batch");
  expect(
      states.rank == 3 && states.dtype == DType::kF32 && states.dim(1) == args.taps - 1 && states.dim(2) == args.hidden,
      "cached_short_conv: states");
  expect(cache.page_size == 0 || (batch.page_table.dtype == DType::kI32 && batch.page_table.rank == 2 &&
                                  batch.page_table.dim(0) == batch.sequences),
         "cached_short_conv: the page table");
  return {.sequence_of = batch.sequence_of.as<const int32_t>(),
          .offsets = batch.offsets.as<const int32_t>(),
          .here = batch.here.as<const int32_t>(),
          .rows = batch.states.as<const int32_t>(),
          .states = states.as<float>(),
          .page_table = batch.page_table.as<const int32_t>(),
          .max_pages = cache.page_size == 0 ? 0 : static_cast<int>(batch.page_table.dim(1)),
          .page_size = static_cast<int>(cache.page_size),
          .first_page_row = cache.first_page_row};
}

}  // namespace

void CudaOps::cached_short_conv(const Tensor& bcz, const Tensor& weight, const Tensor& bias, const Batch& batch,
                                const ConvCache& cache, const Tensor& out) {
  const ShortConvArgs args = short_conv_args(bcz, weight, bias, batch, out);
  launch_cached_short_conv(stream_, args, cached_conv_args(args, batch, cache), bcz.dtype);
}

#if LFM2_HAS_SM90A
namespace {

// Whether launch_project_short_conv supports the convolution.
bool convolves_behind_product(const ShortConvArgs& args, const Batch& batch, const ConvCache& cache) {
  const bool one_each = batch.singles == batch.sequences && batch.sequences == batch.tokens;
  return one_each && batch.tokens <= kMaxConvolvedRows && args.taps <= kMaxConvolvedTaps && args.hidden % 16 == 0 &&
         args.rounded.elements == nullptr && on_16_bytes(cache.states);
}

}  // namespace
#endif

void CudaOps::project_short_conv(const Tensor& x, const Tensor& in_proj, const Tensor& in_bias, const Tensor& weight,
                                 const Tensor& bias, const Batch& batch, const ConvCache& cache, const Tensor& bcz,
                                 const Tensor& out) {
  const ShortConvArgs args = short_conv_args(bcz, weight, bias, batch, out);
  const CachedConvArgs cached = cached_conv_args(args, batch, cache);
#if LFM2_HAS_SM90A
  if (in_proj.dtype != DType::kF8 && convolves_behind_product(args, batch, cache))
    if (const auto product = products_.skinny_args(x, in_proj, in_bias, bcz))
      return launch_project_short_conv(stream_, {*product, args, cached}, out.dtype);
#endif
  matmul(x, in_proj, in_bias, bcz, Write::kStore);
  launch_cached_short_conv(stream_, args, cached, bcz.dtype);
}

void CudaOps::norm_project_short_conv(const Tensor& x, const Tensor& norm_weight, float eps, const Tensor& in_proj,
                                      const Tensor& in_bias, const Tensor& weight, const Tensor& bias,
                                      const Batch& batch, const ConvCache& cache, const Tensor& normed,
                                      const Tensor& bcz, const Tensor& out) {
  check_norm(x, norm_weight, normed);
#if LFM2_HAS_SM90A
  const ShortConvArgs args = short_conv_args(bcz, weight, bias, batch, out);
  const bool fp8 = in_proj.dtype == DType::kF8;
  if (convolves_behind_product(args, batch, cache) && (!fp8 || products_.rounds_operand(x, in_proj)))
    if (const auto product = fp8 ? products_.fp8_args(x, in_proj, in_bias, bcz, Write::kStore)
                                 : products_.skinny_args(x, in_proj, in_bias, bcz))
      if (const auto norm = front_norm_args(*product, x.dtype, norm_weight, eps)) {
        const ProjectShortConvArgs all{*product, args, cached_conv_args(args, batch, cache)};
        if (!fp8) return launch_norm_project_short_conv(stream_, all, *norm, out.dtype);
        if (takes_few_fp8_rows(*product)) return launch_norm_project_short_conv_fp8(stream_, all, *norm);
      }
#endif
  const Tensor rows = rows_for(normed, in_proj);
  rms_norm(x, norm_weight, eps, rows);
  project_short_conv(rows, in_proj, in_bias, weight, bias, batch, cache, bcz, out);
}

void CudaOps::count_tokens(const Tensor& ids, const Tensor& keepers, const Batch& batch, const Tensor& counts) {
  expect(ids.dtype == DType::kI32 && ids.numel() == batch.tokens && keepers.dtype == DType::kI32 &&
             keepers.numel() == 2 * batch.sequences && batch.offsets.numel() == batch.sequences + 1 &&
             batch.positions.numel() == batch.tokens && counts.dtype == DType::kI32 && counts.rank == 2,
         "count_tokens: shapes");
  launch_count_tokens(stream_, {.ids = ids.as<const int32_t>(),
                                .positions = batch.positions.as<const int32_t>(),
                                .offsets = batch.offsets.as<const int32_t>(),
                                .keepers = keepers.as<const int32_t>(),
                                .counts = counts.as<int32_t>(),
                                .sequences = batch.sequences,
                                .vocab = counts.dim(1)});
}

void CudaOps::adjust_logits(const Tensor& logits, const Tensor& draws, const Tensor& rules, const Tensor& slots,
                            const Adjustments& adjustments, const Tensor& masks, const Tensor& out) {
  const int64_t rows = logits.dim(0), vocab = logits.dim(1);
  const auto& [counts, edits, ids, drafted] = adjustments;
  expect(logits.rank == 2 && logits.dtype == DType::kF32 && out.dtype == DType::kF32 && out.dims == logits.dims &&
             draws.dtype == DType::kI32 && draws.numel() == 2 * rows && rules.dtype == DType::kI32 &&
             rules.numel() == kRuleWords * rows && slots.dtype == DType::kI32 && slots.numel() == rows,
         "adjust_logits: shapes");
  expect((!counts || (counts.rank == 2 && counts.dim(1) == vocab)) &&
             (!edits || (edits.rank == 3 && edits.dim(2) == kEditWords)) &&
             (!masks || (masks.dtype == DType::kI32 && masks.numel() == rows * mask_words(vocab))) &&
             (!drafted || (drafted.dtype == DType::kI32 && drafted.numel() == 2 * rows && ids.dtype == DType::kI32)),
         "adjust_logits: adjustments");
  launch_adjust_logits(stream_, {.logits = logits.as<const float>(),
                                 .draws = draws.as<const int32_t>(),
                                 .rules = rules.as<const SamplingRule>(),
                                 .slots = slots.as<const int32_t>(),
                                 .counts = counts.as<const int32_t>(),
                                 .edits = edits.as<const LogitEdit>(),
                                 .ids = ids.as<const int32_t>(),
                                 .drafted = drafted.as<const int32_t>(),
                                 .masks = masks.as<const uint32_t>(),
                                 .out = out.as<float>(),
                                 .rows = rows,
                                 .vocab = vocab,
                                 .max_edits = edits ? edits.dim(1) : 0});
}

void CudaOps::sample(const Tensor& logits, const Tensor& adjusted, const Tensor& draws, const Tensor& rules,
                     const Tensor& ids, const Tensor& log_probs) {
  const int64_t rows = logits.dim(0), vocab = logits.dim(1);
  expect(logits.rank == 2 && logits.dtype == DType::kF32 && vocab > 0 && vocab <= kMaxSampled, "sample: logits");
  expect(draws.dtype == DType::kI32 && draws.numel() == 2 * rows && rules.dtype == DType::kI32 &&
             rules.numel() == kRuleWords * rows && ids.dtype == DType::kI32 && ids.numel() == rows &&
             log_probs.dtype == DType::kF32 && log_probs.numel() == rows &&
             (!adjusted || (adjusted.dtype == DType::kF32 && adjusted.dims == logits.dims)),
         "sample: shapes");
  launch_sample(stream_, {.logits = logits.as<const float>(),
                          .adjusted = adjusted.as<const float>(),
                          .draws = draws.as<const int32_t>(),
                          .rules = rules.as<const SamplingRule>(),
                          .ids = ids.as<int32_t>(),
                          .log_probs = log_probs.as<float>(),
                          .rows = rows,
                          .vocab = vocab});
}

}  // namespace lfm2
