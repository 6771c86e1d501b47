// Brings what a file holds to what the model has: older and fused names, and nothing missing, unknown or misshapen.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "stage/model/model_config.h"
#include "stage/model/tensor_table.h"
#include "weights-tools/formats/raw_tensor.h"

namespace lfm2 {

struct MatchedTensors {
  std::vector<TensorSpec> specs;       // in the order of model_tensors()
  std::vector<RawTensor> raw;          // one for each
  std::optional<RawTensor> tied_head;  // an LM head that is stored though tied: must equal the embedding
};

// Takes Hugging Face names. The experts of a layer may be fused (gate_up_proj, down_proj) and are given back one by
// one; expert_bias may be named expert_bias.weight. `what` names the model in messages. Error(kData).
MatchedTensors match_tensors(const ModelConfig& config, RawTensors found, const std::string& what);

}  // namespace lfm2
