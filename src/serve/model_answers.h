// What is answered at once, from what is known of the model and its tokenizer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json/json.h"
#include "openai/request_line.h"
#include "serve/http/limits.h"
#include "serve/http/message.h"

namespace lfm2::serve {

struct ModelFacts {
  std::string name;
  std::string version;  // of the program
  std::vector<int32_t> eos_tokens;
  int64_t max_length = 0;  // tokens of a text
  LineContext lines;       // `text` outlives this
  size_t max_answer_bytes = http::Limits{}.max_answer_bytes;
};

http::Answer json_answer(const OrderedJson& body);

// May be asked by many threads. Error(kData) for what a body should not have, and for one whose answer would be too
// large, before it is made.
class ModelAnswers {
 public:
  explicit ModelAnswers(ModelFacts facts);

  http::Answer models() const;
  http::Answer model(std::string_view name) const;
  http::Answer tokenizer_info() const;
  http::Answer version() const;
  http::Answer tokenize(std::string_view body) const;
  http::Answer detokenize(std::string_view body) const;
  int64_t started() const { return started_; }

 private:
  OrderedJson entry() const;
  void check_room(size_t answer_bytes) const;

  const ModelFacts facts_;
  const int64_t started_;  // seconds since 1970
};

}  // namespace lfm2::serve
