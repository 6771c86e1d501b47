#pragma once

#include "stage/shards/fp8_scales.h"
#include "weights-tools/model/model_source.h"

namespace lfm2 {

// Reads the scales of fp8 weight number `weight`, which follow it in the source. Error(kData) for what TensorReader
// refuses.
Fp8Scales read_scales(const ModelSource& source, size_t weight);

}  // namespace lfm2
