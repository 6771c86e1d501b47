// Matches the tensors of a file with those of the model: resolves older and fused names, and refuses missing, unknown
// and misshapen tensors.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "stage/model/model_config.h"
#include "stage/model/tensor_table.h"
#include "weights-tools/formats/raw_tensor.h"

namespace lfm2 {

struct MatchedTensors {
  std::vector<TensorSpec> specs;  // in the order of model_tensors()
  std::vector<RawTensor> raw;     // in the same order
  // a stored LM head of a model with a tied one; it must equal the embedding.
  std::optional<RawTensor> tied_head;
};

// `found` has Hugging Face names. The experts of a layer may be fused (gate_up_proj, down_proj) and are returned one by
// one; expert_bias may be named expert_bias.weight. `what` names the model in messages. Error(kData).
MatchedTensors match_tensors(const ModelConfig& config, RawTensors found, const std::string& what);

}  // namespace lfm2
