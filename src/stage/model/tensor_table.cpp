// Names and shapes of the tensors of Lfm2, Lfm2Moe and Lfm3 checkpoints.
#include "stage/model/tensor_table.h"

#include <fmt/ranges.h>

#include "base/checked_file.h"
#include "kernels/gate_up.h"

namespace lfm2 {

namespace {

class TableWriter {
 public:
  explicit TableWriter(std::vector<TensorSpec>& table) : table_(table) {}
  void place(int64_t layer, std::string prefix) {
    layer_ = layer;
    prefix_ = std::move(prefix);
  }
  void add(const std::string& name, std::initializer_list<int64_t> dims, bool keep_fp32 = false, int64_t padding = 0) {
    table_.push_back({prefix_ + name, std::vector<uint64_t>(dims.begin(), dims.end()), layer_, keep_fp32,
                      static_cast<uint64_t>(padding)});
  }

 private:
  std::vector<TensorSpec>& table_;
  int64_t layer_ = 0;
  std::string prefix_;
};

void add_conv(TableWriter& table, const ModelConfig& c) {
  table.add("conv.in_proj.weight", {3 * c.hidden, c.hidden});
  if (c.conv_bias) table.add("conv.in_proj.bias", {3 * c.hidden});
  table.add("conv.conv.weight", {c.hidden, 1, c.conv_length});
  if (c.conv_bias) table.add("conv.conv.bias", {c.hidden});
  table.add("conv.out_proj.weight", {c.hidden, c.hidden});
  if (c.conv_bias) table.add("conv.out_proj.bias", {c.hidden});
}

void add_attention(TableWriter& table, const ModelConfig& c) {
  const AttentionNames names = attention_names(c.type);
  const auto add_projection = [&](std::string_view name, int64_t rows, int64_t columns) {
    table.add(fmt::format("self_attn.{}.weight", name), {rows, columns});
    if (c.attention_bias) table.add(fmt::format("self_attn.{}.bias", name), {rows});
  };
  add_projection("q_proj", c.heads * c.head_dim, c.hidden);
  add_projection("k_proj", c.kv_heads * c.head_dim, c.hidden);
  add_projection("v_proj", c.kv_heads * c.head_dim, c.hidden);
  if (c.head_gates) table.add("self_attn.gate_proj.weight", {c.heads, c.hidden});
  table.add(fmt::format("self_attn.{}.weight", names.q_norm), {c.head_dim});
  table.add(fmt::format("self_attn.{}.weight", names.k_norm), {c.head_dim});
  add_projection(names.out_proj, c.hidden, c.heads * c.head_dim);
}

void add_swiglu(TableWriter& table, const std::string& prefix, int64_t ffn, int64_t hidden) {
  const int64_t padding = (padded_ffn(ffn) - ffn) * hidden;
  table.add(prefix + "w1.weight", {ffn, hidden}, false, padding);
  table.add(prefix + "w3.weight", {ffn, hidden}, false, padding);
  table.add(prefix + "w2.weight", {hidden, ffn}, false, padding);
}

void add_moe(TableWriter& table, const ModelConfig& c) {
  table.add("feed_forward.gate.weight", {c.experts, c.hidden});
  if (c.expert_bias) table.add("feed_forward.expert_bias", {c.experts}, true);
  for (int64_t expert = 0; expert < c.experts; ++expert)
    add_swiglu(table, fmt::format("feed_forward.experts.{}.", expert), c.moe_ffn, c.hidden);
}

}  // namespace

AttentionNames attention_names(ModelType type) {
  if (type == ModelType::kLfm3) return {"o_proj", "q_norm", "k_norm"};
  return {"out_proj", "q_layernorm", "k_layernorm"};
}

int64_t head_layer(const ModelConfig& config) { return config.layers; }

std::string layer_prefix(int64_t layer) { return fmt::format("model.layers.{}.", layer); }

bool in_feed_forward(const TensorSpec& spec) {
  const std::string prefix = layer_prefix(spec.layer);
  return spec.name.starts_with(prefix + "feed_forward.") || spec.name.starts_with(prefix + "ffn_norm.") ||
         spec.name.starts_with(prefix + "post_ffn_norm.");
}

std::vector<TensorSpec> model_tensors(const ModelConfig& config) {
  std::vector<TensorSpec> tensors;
  TableWriter table(tensors);
  table.place(kEmbeddingLayer, "model.");
  table.add("embed_tokens.weight", {config.vocab, config.hidden});
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    table.place(layer, layer_prefix(layer));
    table.add("operator_norm.weight", {config.hidden});
    if (config.layer_types[static_cast<size_t>(layer)] == LayerType::kConv)
      add_conv(table, config);
    else
      add_attention(table, config);
    if (config.sandwich_norms) table.add("post_operator_norm.weight", {config.hidden});
    table.add("ffn_norm.weight", {config.hidden});
    if (config.is_dense(layer))
      add_swiglu(table, "feed_forward.", config.ffn, config.hidden);
    else
      add_moe(table, config);
    if (config.sandwich_norms) table.add("post_ffn_norm.weight", {config.hidden});
  }
  table.place(head_layer(config), "");
  table.add(std::string(kFinalNormName), {config.hidden});
  if (!config.tied_embedding) table.add("lm_head.weight", {config.vocab, config.hidden});
  return tensors;
}

std::string dims_text(const std::vector<uint64_t>& dims) { return fmt::format("[{}]", fmt::join(dims, ", ")); }

uint64_t numel(const std::vector<uint64_t>& dims) {
  uint64_t count = 1;
  for (uint64_t extent : dims) count = checked_multiply(count, extent, "shape " + dims_text(dims));
  return count;
}

}  // namespace lfm2
