// Answers requests that need no forward, from the model's facts and its tokenizer, as JSON text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json/json_fwd.h"
#include "openai/request_fields.h"

namespace lfm2 {

struct ModelFacts {
  std::string name;
  std::string version;  // of the program
  std::vector<int32_t> eos_tokens;
  int64_t max_length = 0;  // tokens of a text
  LineContext lines;       // `text` outlives this
  size_t max_answer_bytes = 0;
};

// Many threads may call it. Error(kData) for a bad body, and for a body whose answer would be too large, before that
// answer is computed.
class ModelInfo {
 public:
  explicit ModelInfo(ModelFacts facts);

  std::string models() const;
  std::optional<std::string> model(std::string_view name) const;  // empty if there is no such model
  std::optional<std::string> tokenizer_info() const;              // empty if there is no tokenizer
  std::string version() const;
  std::string tokenize(std::string_view body) const;
  std::string detokenize(std::string_view body) const;
  int64_t started() const { return started_; }

 private:
  OrderedJson entry() const;
  void check_room(size_t answer_bytes) const;

  const ModelFacts facts_;
  const int64_t started_;  // seconds since 1970
};

}  // namespace lfm2
