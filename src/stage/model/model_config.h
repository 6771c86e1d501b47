// The model's dimensions, read from a Hugging Face config.json (model_type lfm2, lfm2_moe or lfm3). Unknown values are
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

enum class ModelType : uint8_t { kLfm2, kLfm2Moe, kLfm3 };
std::string_view type_name(ModelType type);  // model_type in config.json

enum class LayerType : uint8_t { kConv, kAttention, kSlidingAttention };
constexpr bool is_attention(LayerType type) { return type != LayerType::kConv; }

// The last part of the model that a job computes. Hidden states need no LM head, and those of the residual stream no
// final norm.
enum class ModelEnd : uint8_t { kLmHead, kFinalNorm, kLastLayer };

struct ModelConfig {
  ModelType type = ModelType::kLfm2;
  int64_t vocab = 0, hidden = 0, layers = 0;
  std::vector<LayerType> layer_types;  // [layers]
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t ffn = 0;           // of dense layers, after block_auto_adjust_ff_dim; a device holds padded_ffn(ffn) rows
  int64_t dense_layers = 0;  // the number of dense layers, which come first; all layers without experts
  int64_t experts = 0, top_k = 0, moe_ffn = 0;
  bool expert_bias = false, norm_topk_prob = false;
  float routed_scaling_factor = 1.0f;
  int64_t conv_length = 0;  // L
  bool conv_bias = false;
  float norm_eps = 0.0f;
  Rope rope, sliding_rope;      // of full attention, and of sliding attention
  int64_t window = 0;           // of sliding attention; 0: there is none
  bool attention_bias = false;  // of the projections of queries, keys, values and results
  bool head_gates = false;      // a gate for each query head and token
  bool sandwich_norms = false;  // a norm of each block's result before it is added to the residual stream
  std::string note;             // a reading of this file that it does not spell out, for people; else empty
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
  AttentionShape attention(LayerType of = LayerType::kAttention) const {
    return {heads, kv_heads, head_dim, fp8_cache, of == LayerType::kSlidingAttention ? window : 0, head_gates};
  }
  const Rope& rope_of(LayerType of) const { return of == LayerType::kSlidingAttention ? sliding_rope : rope; }
  RouterRule router() const { return {top_k, norm_topk_prob, routed_scaling_factor}; }
  std::string_view type_name() const { return lfm2::type_name(type); }
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
