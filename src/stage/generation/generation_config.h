// generation_config.json: how the makers of a model would have its texts continued.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lfm2 {

struct GenerationConfig {
  std::optional<float> temperature = {}, top_p = {}, min_p = {}, repetition_penalty = {};
  std::optional<int64_t> top_k = {};
  std::optional<int64_t> max_new = {};
  std::optional<int32_t> min_tokens = {};
  std::vector<int32_t> eos_tokens = {};  // empty: the file names none
  std::vector<std::string> stop = {};    // texts that end a text

  // As vLLM reads the file: do_sample false means temperature 0, and otherwise do_sample decides nothing. Error(kData)
  // naming `what` and the key for values that are impossible, and for those that would change texts and are not
  // supported; other keys are ignored, as transformers writes many.
  static GenerationConfig parse(std::string_view json, const std::string& what);
};

}  // namespace lfm2
