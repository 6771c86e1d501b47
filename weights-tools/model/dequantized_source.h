// Presents a model with fp8 weights in another type: each weight is its fp8 value times its scale, rounded once.
#pragma once

#include "weights-tools/model/model_source.h"

namespace lfm2 {

// The model without scales and without quantization_config. Its fp8 weights are in `dtype` (fp32, bf16 or fp16); other
// tensors are unchanged. Reading throws Error(kData) for what TensorReader refuses, and if a product is too large for
// `dtype`.
std::unique_ptr<ModelSource> dequantize(std::unique_ptr<ModelSource> source, DType dtype);

}  // namespace lfm2
