// What is answered at once, from what is known of the model and its tokenizer, as JSON text.
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

// May be asked by many threads. Error(kData) for what a body should not have, and for one whose answer would be too
// large, before it is made.
class ModelInfo {
 public:
  explicit ModelInfo(ModelFacts facts);

  std::string models() const;
  std::optional<std::string> model(std::string_view name) const;  // nothing: there is no such model
  std::optional<std::string> tokenizer_info() const;              // nothing: there is no tokenizer
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
