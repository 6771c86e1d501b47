// Parses options that several commands share, and computes the figures of a stage that plan prints.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stage/model/partition.h"
#include "weights-tools/model/model_source.h"

namespace lfm2 {

// The type with this name; nothing for "keep". Error(kUsage) for an unknown type.
std::optional<DType> wanted_dtype(const std::string& text);

// The stages by --stages or --layers; without either, four stages, or one for each layer of a smaller model.
// Error(kUsage).
std::vector<LayerRange> choose_stages(int64_t layers, const std::optional<int64_t>& stages,
                                      const std::vector<int64_t>& counts);

// Parses "80GB", "512 MiB", "1.5TB" or plain bytes: decimal units count 1000, binary ones 1024. Error(kUsage).
uint64_t parse_bytes(const std::string& text);

struct NeedsInput {
  std::optional<DType> dtype;  // type of weights on the GPU; nothing keeps the stored types
  DType act = DType::kF32;     // type of activations
  int64_t samples = 0;         // samples in a micro-batch
  int64_t length = 0;          // tokens in a sample
};

struct StageNeeds {
  LayerRange layers;
  int64_t attention_layers = 0;
  uint64_t parameters = 0;
  uint64_t weight_bytes = 0;     // a tied embedding counts in the first and in the last stage
  uint64_t slot_bytes = 0;       // residual streams
  uint64_t workspace_bytes = 0;  // activations inside a layer
  uint64_t logits_bytes = 0;     // buffers of logits, in the last stage
  double gflop_per_token = 0;    // work of the layers, with attention at `length`
  uint64_t total_bytes() const { return weight_bytes + slot_bytes + workspace_bytes + logits_bytes; }
};

std::vector<StageNeeds> stage_needs(const ModelSource& model, const std::vector<LayerRange>& stages,
                                    const NeedsInput& input);

// Work of the LM head for one position.
double head_gflop(const ModelConfig& config);

}  // namespace lfm2
