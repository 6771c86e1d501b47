// Lfm2Attention and Lfm3Attention of transformers, composed of the operators.
#include "stage/model/attention.h"

#include <fmt/format.h>

#include <numeric>

#include "stage/model/tensor_table.h"

namespace lfm2 {

Attention::Attention(WeightSource& weights, const ModelConfig& config, const std::string& prefix, LayerType type)
    : shape_(config.attention(type)), eps_(config.norm_eps), rope_(config.rope_of(type)) {
  const std::string block = prefix + "self_attn.";
  const AttentionNames names = attention_names(config.type);
  load_qkv(weights, config, block);
  const auto norm = [&](std::string_view name) {
    return weights.load({fmt::format("{}{}.weight", block, name)}, {shape_.head_dim});
  };
  q_norm_ = norm(names.q_norm);
  k_norm_ = norm(names.k_norm);
  const std::string out = fmt::format("{}{}", block, names.out_proj);
  out_proj_.weight = weights.load_for_products({out + ".weight"}, {config.hidden, shape_.heads * shape_.head_dim});
  if (config.attention_bias) out_proj_.bias = weights.load({out + ".bias"}, {config.hidden});
  out_proj_.norm = load_post_norm(weights, config, prefix + "post_operator_norm");
}

// Joins the projections of one kind: gates have no bias, and only some of the projections may be fp8.
void Attention::load_qkv(WeightSource& weights, const ModelConfig& config, const std::string& block) {
  std::vector<std::string> parts = {"q_proj", "k_proj", "v_proj"};
  std::vector<int64_t> rows = {shape_.heads * shape_.head_dim, shape_.kv_heads * shape_.head_dim,
                               shape_.kv_heads * shape_.head_dim};
  if (shape_.gated) parts.emplace_back("gate_proj"), rows.push_back(shape_.heads);
  const auto names = [&](size_t first, size_t end, const char* ending) {
    std::vector<std::string> all;
    for (size_t part = first; part < end; ++part) all.push_back(block + parts[part] + ending);
    return all;
  };
  for (size_t first = 0; first < parts.size();) {
    size_t end = config.attention_bias && first < 3 ? 3 : parts.size();
    if (!weights.load_together(names(first, end, ".weight")))
      end = first == 0 && weights.load_together(names(0, 3, ".weight")) ? 3 : first + 1;
    const int64_t count = std::accumulate(rows.begin() + static_cast<std::ptrdiff_t>(first),
                                          rows.begin() + static_cast<std::ptrdiff_t>(end), int64_t{0});
    qkv_proj_.push_back(weights.load_for_products(names(first, end, ".weight"), {count, config.hidden}));
    const bool has_bias = config.attention_bias && first < 3;
    qkv_bias_.push_back(has_bias ? weights.load(names(first, end, ".bias"), {count}) : Tensor());
    first = end;
  }
}

void Attention::project(const Pass& pass, const Norm& norm, const Tensor& qkv) const {
  if (qkv_proj_.size() == 1) return pass.project(norm, qkv_proj_.front(), qkv_bias_.front(), qkv);
  int64_t first = 0;
  for (size_t i = 0; i < qkv_proj_.size(); ++i) {
    const Tensor& w = qkv_proj_[i];
    const Tensor part = pass.scratch.allocate(qkv.dtype, {qkv.dim(0), w.dim(0)});
    pass.project(norm, w, qkv_bias_[i], part);
    pass.ops.put_columns(part, first, qkv);
    first += w.dim(0);
  }
}

// The batch with the page table of this layer's cache.
Batch Attention::cached(const Pass& pass, Batch batch) const {
  if (shape_.window > 0 && pass.window_table) batch.page_table = pass.window_table;
  return batch;
}

Tensor Attention::mix(const Pass& pass, const Norm& norm) const {
  Ops& ops = pass.ops;
  const DType act = pass.residual.dtype;
  const int64_t tokens = pass.residual.dim(0);
  const Tensor qkv = pass.scratch.allocate(act, {tokens, shape_.qkv_columns()});
  const Tensor mixed = pass.scratch.allocate(act, {tokens, shape_.heads * shape_.head_dim});
  project(pass, norm, qkv);
  if (pass.cache == nullptr) {
    ops.qk_norm_rope(qkv, q_norm_, k_norm_, eps_, rope_, shape_, pass.batch);
    ops.attention(qkv, shape_, pass.batch, mixed);
  } else {
    const KeyValueCache& cache = pass.cache->key_values;
    ops.qk_norm_rope_append(qkv, q_norm_, k_norm_, eps_, rope_, shape_, cached(pass, pass.batch), cache);
    ops.cached_attention(qkv, shape_, cached(pass, pass.reads != nullptr ? *pass.reads : pass.batch), cache, mixed);
  }
  if (shape_.gated) ops.gate_heads(qkv, shape_, mixed);
  return mixed;
}

// The queries, which nothing reads, cost less than separate matrices of keys and values.
void Attention::append_keys_values(const Pass& pass, const Tensor& rows) const {
  expect(qkv_proj_.size() == 1, "Attention: keys and values of fp8 weights");
  pass.scratch.reset();
  const Tensor qkv = pass.scratch.allocate(rows.dtype, {rows.dim(0), shape_.qkv_columns()});
  pass.ops.matmul(rows, qkv_proj_.front(), qkv_bias_.front(), qkv, Write::kStore);
  pass.ops.qk_norm_rope_append(qkv, q_norm_, k_norm_, eps_, rope_, shape_, cached(pass, pass.batch),
                               pass.cache != nullptr ? pass.cache->key_values : KeyValueCache());
}

}  // namespace lfm2
