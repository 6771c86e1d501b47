// generation_config.json: how the makers of a model would have its texts continued.
#pragma once

#include <string>
#include <string_view>

#include "openai/sampling_overrides.h"

namespace lfm2 {

// As vLLM reads the file: do_sample false means temperature 0, and otherwise do_sample decides nothing. Error(kData)
// naming `what` and the key for values that are impossible, and for those that would change texts and are not
// supported; other keys are ignored, as transformers writes many.
SamplingOverrides parse_generation_config(std::string_view json, const std::string& what);

}  // namespace lfm2
