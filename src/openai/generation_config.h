// Reads generation_config.json, the sampling defaults that come with a model.
#pragma once

#include <string>
#include <string_view>

#include "openai/sampling_overrides.h"

namespace lfm2 {

// Reads the file as vLLM does: "do_sample": false means temperature 0; true has no effect. Error(kData) naming `what`
// and the key for impossible values, and for values that would change texts and are not supported. Other keys are
// ignored, because transformers writes many.
SamplingOverrides parse_generation_config(std::string_view json, const std::string& what);

}  // namespace lfm2
