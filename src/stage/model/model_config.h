// The model's dimensions, read from a Hugging Face config.json (model_type lfm2_moe or lfm2). Unknown values are
// refused.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/ops.h"
#include "stage/model/quantization.h"

namespace lfm2 {

enum class LayerType : uint8_t { kConv, kAttention };

// The last part of the model that a job computes. Hidden states need no LM head, and those of the residual stream no
// final norm.
enum class ModelEnd : uint8_t { kLmHead, kFinalNorm, kLastLayer };

struct ModelConfig {
  bool moe = false;  // model_type is lfm2_moe; otherwise it is lfm2, and every feed-forward is dense
  int64_t vocab = 0, hidden = 0, layers = 0;
  std::vector<LayerType> layer_types;  // [layers]
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t ffn = 0;           // of dense layers, after block_auto_adjust_ff_dim; a device holds padded_ffn(ffn) rows
  int64_t dense_layers = 0;  // the number of dense layers, which come first; all layers where !moe
  int64_t experts = 0, top_k = 0, moe_ffn = 0;
  bool expert_bias = false, norm_topk_prob = false;
  float routed_scaling_factor = 1.0f;
  int64_t conv_length = 0;  // L
  bool conv_bias = false;
  float norm_eps = 0.0f;
  float rope_theta = 0.0f;
  int64_t max_positions = 0;
  bool tied_embedding = false;      // the LM head is the embedding
  std::vector<int32_t> eos_tokens;  // any of these ids ends a text; may be empty
  Quantization quantization;        // of fp8 weights
  // Not in config.json: the names of the weights that are multiplied as fp8.
  std::set<std::string> fp8_weights;
  bool fp8_cache = false;  // not in config.json: AttentionShape::fp8_cache
  // Not in config.json: how much of the model a job computes. If it computes only the first layers, `layers` and
  // `layer_types` describe those.
  ModelEnd end = ModelEnd::kLmHead;

  bool is_dense(int64_t layer) const { return layer < dense_layers; }
  AttentionShape attention() const { return {heads, kv_heads, head_dim, fp8_cache}; }
  RouterRule router() const { return {top_k, norm_topk_prob, routed_scaling_factor}; }
  std::string_view type_name() const { return moe ? "lfm2_moe" : "lfm2"; }
  bool operator==(const ModelConfig&) const = default;
};

// Whether WeightSource::load() can load these weights as one tensor, that is, none or all of them are fp8.
bool are_loaded_together(const ModelConfig& config, const std::vector<std::string>& names);

// Parses a config.json. `what` names the file in messages. Error(kData) for a missing, impossible or unsupported value.
ModelConfig parse_model_config(std::string_view json_text, const std::string& what);

// The config.json of a built-in model (a file of the folder configs, without its ending); empty for any other name.
std::string_view builtin_model_config(std::string_view name);
// Their names, separated by commas.
std::string_view builtin_models();

}  // namespace lfm2
