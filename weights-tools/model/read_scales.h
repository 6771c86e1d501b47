#pragma once

#include "stage/shards/fp8_scales.h"
#include "weights-tools/model/model_source.h"

namespace lfm2 {

// The scales of the fp8 weight with this number, which follow it. Error(kData) for what TensorReader refuses.
Fp8Scales read_scales(const ModelSource& source, size_t weight);

}  // namespace lfm2
