// What a stage will need: the figures behind plan.
#pragma once

#include <cstdint>
#include <vector>

#include "stage/model/partition.h"
#include "weights-tools/model/model_source.h"

namespace lfm2 {

struct NeedsInput {
  std::optional<DType> dtype;  // of weights on the GPU; nothing keeps the stored ones
  DType act = DType::kF32;     // of activations
  int64_t samples = 0;         // in a micro-batch
  int64_t length = 0;          // tokens in a sample
};

struct StageNeeds {
  LayerRange layers;
  int64_t attention_layers = 0;
  uint64_t parameters = 0;
  uint64_t weight_bytes = 0;     // a tied embedding counts in the first and in the last stage
  uint64_t slot_bytes = 0;       // residual streams
  uint64_t workspace_bytes = 0;  // activations inside a layer
  uint64_t logits_bytes = 0;     // on their way out, in the last stage
  double gflop_per_token = 0;    // of the layers, attention at this length included
  uint64_t total_bytes() const { return weight_bytes + slot_bytes + workspace_bytes + logits_bytes; }
};

std::vector<StageNeeds> stage_needs(const ModelSource& model, const std::vector<LayerRange>& stages,
                                    const NeedsInput& input);

// Of one position that goes through the LM head.
double head_gflop(const ModelConfig& config);

}  // namespace lfm2
