// The list of a model's tensors, for split, verify, merge, synth, plan and the loading of a stage.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "stage/model/model_config.h"

namespace lfm2 {

// Values of TensorSpec::layer for tensors that belong to no layer.
inline constexpr int64_t kEmbeddingLayer =
    -1;  // model.embed_tokens: on the first stage, and on the last if the LM head is tied
// model.embedding_norm and lm_head, on the last stage; the value is config.layers.
int64_t head_layer(const ModelConfig& config);
inline constexpr std::string_view kFinalNormName = "model.embedding_norm.weight";

struct TensorSpec {
  std::string name;  // as in a Hugging Face checkpoint
  std::vector<uint64_t> dims;
  int64_t layer = 0;  // a layer's number, kEmbeddingLayer, or head_layer()
  // A device holds the tensor as fp32, whatever the compute type: scales of fp8, and expert_bias, which is fp32 in
  // every checkpoint.
  bool keep_fp32 = false;
  // Number of zero elements that a device holds in addition to `dims`: see padded_ffn().
  uint64_t padding = 0;
};

// Every tensor of the model, in the order of the forward: embedding, layers, final norm, untied LM head. The experts of
// an MoE layer follow each other, each as w1, w3, w2, so that a loader reads an expert's gate and up rows in one run.
std::vector<TensorSpec> model_tensors(const ModelConfig& config);

// The names of an attention block's modules that differ between the models.
struct AttentionNames {
  std::string_view out_proj, q_norm, k_norm;
};
AttentionNames attention_names(ModelType type);

std::string layer_prefix(int64_t layer);                   // "model.layers.7."
bool in_feed_forward(const TensorSpec& spec);              // a layer's tensor: of its feed-forward and its norms
std::string dims_text(const std::vector<uint64_t>& dims);  // "[2048, 1792]"
uint64_t numel(const std::vector<uint64_t>& dims);         // Error(kData) on overflow
// The type of most bytes of `tensors`, fp8 weights excluded. It is the default type of activations. Each tensor has a
// `spec`, `dtype` and `bytes`.
template <class Tensors>
DType dtype_of_most_bytes(const Tensors& tensors) {
  std::map<DType, uint64_t> bytes;
  for (const auto& tensor : tensors)
    if (tensor.dtype != DType::kF8 && !tensor.spec.keep_fp32) bytes[tensor.dtype] += tensor.bytes;
  return std::max_element(bytes.begin(), bytes.end(), [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}
inline uint64_t held_elements(const TensorSpec& spec) { return numel(spec.dims) + spec.padding; }

}  // namespace lfm2
