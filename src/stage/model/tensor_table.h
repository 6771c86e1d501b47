// Which tensors a model has: the one list behind split, verify, merge, synth, plan and the loading of a stage.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/dtype.h"
#include "stage/model/model_config.h"

namespace lfm2 {

// Where in the model a tensor belongs, besides layers 0 … layers - 1.
inline constexpr int64_t kEmbeddingLayer =
    -1;  // model.embed_tokens: the first stage (and the last, where the LM head is tied)
int64_t head_layer(const ModelConfig& config);  // model.embedding_norm, lm_head: the last stage; = config.layers

struct TensorSpec {
  std::string name;  // as in a Hugging Face checkpoint
  std::vector<uint64_t> dims;
  int64_t layer = 0;       // kEmbeddingLayer, a layer, or head_layer()
  bool keep_fp32 = false;  // expert_bias: fp32 in every checkpoint, never converted
  uint64_t padding = 0;    // elements, all zero, that a device holds besides those of `dims`: padded_ffn()
};

// Every tensor of the model, in the order of the forward: embedding, layers, final norm, untied LM head. In an MoE
// layer the experts follow one another, each as w1, w3, w2, so that a loader reads an expert's gate and up rows in one
// run.
std::vector<TensorSpec> model_tensors(const ModelConfig& config);

std::string layer_prefix(int64_t layer);                   // "model.layers.7."
std::string dims_text(const std::vector<uint64_t>& dims);  // "[2048, 1792]"
uint64_t numel(const std::vector<uint64_t>& dims);         // Error(kData) on overflow
inline uint64_t held_elements(const TensorSpec& spec) { return numel(spec.dims) + spec.padding; }

}  // namespace lfm2
