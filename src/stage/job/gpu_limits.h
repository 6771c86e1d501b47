// Which models the GPU backend cannot compute: asked before weights are read.
#pragma once

#include <string>

#include "stage/model/model_config.h"

namespace lfm2 {

// Names the first key that goes beyond the kernels' limits, what it is and what is expected; empty: there is none.
std::string gpu_refusal(const ModelConfig& config);
// Error(kUnavailable) where there is one; `what` names the model.
void expect_gpu_computes(const ModelConfig& config, const std::string& what);

}  // namespace lfm2
