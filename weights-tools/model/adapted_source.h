// Presents a model with LoRA adapters merged into its weights.
#pragma once

#include "weights-tools/formats/adapter.h"
#include "weights-tools/model/model_source.h"

namespace lfm2 {

// The weights that the adapters change are presented in fp32, so that whoever writes them rounds once:
//
//   W' = (W + s · (B A)) + s2 · (B2 A2) ...      in the order of the adapters
//
// Each product of the sum over ranks is added by a fused multiply-add, in their order. `threads` threads share the
// arithmetic, with the same results for any number; 0: one for each processor, up to 16. Without adapters it returns
// `source`. Errors as of Adapter, and Error(kData) if the model has fp8 weights, which have no room for the sum.
std::unique_ptr<ModelSource> adapt(std::unique_ptr<ModelSource> source, const std::vector<std::string>& folders,
                                   int threads = 0);

}  // namespace lfm2
