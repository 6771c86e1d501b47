// Says which models the GPU backend cannot compute, before their weights are read.
#pragma once

#include <string>

#include "stage/model/model_config.h"

namespace lfm2 {

// A text that names the first key that is beyond the limits of the kernels, its value and the limit. Empty where the
// GPU backend can compute the model.
std::string gpu_refusal(const ModelConfig& config);
// Error(kUnavailable) with that text where it is not empty. `what` names the model.
void expect_gpu_computes(const ModelConfig& config, const std::string& what);

}  // namespace lfm2
