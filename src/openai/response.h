// Writes a completion as a line of .jsonl, in this program's own form or as OpenAI's batch output; also batch answers
// with embeddings.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json/json_fwd.h"
#include "openai/answer/answer_reader.h"
#include "openai/sample_rules.h"
#include "stage/pipeline/completion.h"

namespace lfm2 {

class Tokenizer;

// Facts that all answers of a job or server share.
struct ResponseFacts {
  std::string model = {};
  int64_t created = 0;                   // seconds since 1970
  const Tokenizer* tokenizer = nullptr;  // decodes the texts; null: answers have only token ids
  AnswerTokens answer_tokens = {};       // of the tokenizer
};

// The body of an answer of /v1/completions or /v1/chat/completions.
OrderedJson response_body(const std::string& id, OrderedJson choices, const ResponseForm& form,
                          const ResponseFacts& facts, OrderedJson usage);
// `tokens`: of all choices; `thought_tokens`: how many of them belong to thoughts, of answers that may have some.
OrderedJson usage_json(int64_t prompt_tokens, int64_t tokens, std::optional<int64_t> thought_tokens = {},
                       const DraftCounts& drafts = {});

// {"id", "token_ids", "text", "finish_reason"}, and "error" if the reason is "error". "text" needs a tokenizer. If the
// request asks for them, also "logprobs" [tokens], "top_ids" and "top_logprobs" [tokens, k]. Several choices are {"id",
// "choices"}, and each choice has the fields above without "id". `name` is the sample's name as JSON text; "": its
// number.
std::string plain_response(const Completion& completion, const ResponseForm& form, std::string_view name,
                           const Tokenizer* tokenizer);

// {"id", "custom_id", "response": {"status_code", "request_id", "body"}, "error"}, with a body of /v1/completions or
// /v1/chat/completions. An error has no body, status 400 (500 if the model's results are not finite) and {"message",
// "type", "param", "code"}. Nothing is random: ids are made from the sample's number, and "created" is the time of the
// job.
std::string batch_response(const Completion& completion, const ResponseForm& form, std::string_view name,
                           const ResponseFacts& facts);

// The answer to a batch line of /v1/embeddings, with an embedding for each input. An embedding is a hidden state scaled
// to length 1, as OpenAI's are; a state of zeros is not scaled.
class EmbeddingResponse {
 public:
  void add(std::span<const float> state, bool base64);
  // Returns the body of an answer to inputs of `tokens` tokens, as JSON text, and starts the next answer.
  std::string pop_body(std::string_view model, int64_t tokens);
  // Returns the line with its line end, and starts the next one. A `refused` line also has inputs, but its answer is
  // its error.
  std::string pop_line(int64_t sample, std::string_view name, std::string_view model, int64_t tokens,
                       std::string_view refused);

 private:
  std::string data_;
  int64_t inputs_ = 0;
  bool not_finite_ = false;  // whether any state so far has such a value
  std::vector<float> unit_;
};

}  // namespace lfm2
