// A completion as a line of .jsonl: as this program writes it, or as OpenAI's batches do; and their answers with
// embeddings.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json/json_fwd.h"
#include "openai/sample_rules.h"
#include "stage/pipeline/completion.h"
#include "text/stream_decoder.h"

namespace lfm2 {

class Tokenizer;

// What the answers of a job or of a server have in common.
struct ResponseFacts {
  std::string model = {};
  int64_t created = 0;                   // seconds since 1970
  const Tokenizer* tokenizer = nullptr;  // gives texts; null: answers have only token ids
};

// For each token of a choice the number of characters of its text that precede the token. A token that continues a
// character which earlier tokens began counts from the beginning of that character.
class TokenOffsets {
 public:
  // The tokenizer must outlive this; without one all offsets are 0.
  explicit TokenOffsets(const Tokenizer* tokenizer);
  std::vector<int64_t> of(std::span<const int32_t> ids);  // those that come next
  void end();                                             // what comes next begins no character in the middle

 private:
  const Tokenizer* tokenizer_;
  std::optional<StreamDecoder> decoder_;
  int64_t before_ = 0;
};

// "logprobs" of a choice in that form, of all tokens of `completion`; with echo after those of its prompt_ids; null
// where the request asks for none. `offsets`: of the choice so far, where others of its tokens were answered before.
OrderedJson log_probs_json(const Completion& completion, const ResponseForm& form, const Tokenizer* tokenizer,
                           TokenOffsets& offsets);

// The body of an answer of /v1/completions or /v1/chat/completions.
OrderedJson response_body(const std::string& id, OrderedJson choices, const ResponseForm& form,
                          const ResponseFacts& facts, OrderedJson usage);
OrderedJson usage_json(int64_t prompt_tokens, int64_t tokens);  // `tokens`: of all choices

// {"id", "token_ids", "text", "finish_reason"}, and "error" where that is "error"; "text" where there is a tokenizer;
// where the request has them, "logprobs" [tokens], "top_ids" and "top_logprobs" [tokens, k]. With several choices
// {"id", "choices"}; each choice has all of these fields but "id". `name`: the sample's, as JSON text; "": its number
// stands for it.
std::string plain_response(const Completion& completion, const ResponseForm& form, std::string_view name,
                           const Tokenizer* tokenizer);

// {"id", "custom_id", "response": {"status_code", "request_id", "body"}, "error"}, with a body of /v1/completions or
// /v1/chat/completions. An error has status 400, or 500 where the model's results are not finite, no body, and
// {"message", "type", "param", "code"}. Nothing in it is random: ids are made of the sample's number, and "created" is
// the time of the job.
std::string batch_response(const Completion& completion, const ResponseForm& form, std::string_view name,
                           const ResponseFacts& facts);

// The answer to a line of /v1/embeddings, in the same frame: an embedding for each of its inputs. An embedding is a
// hidden state, scaled to length 1 as those of OpenAI are; a state of zeros stays one.
class EmbeddingResponse {
 public:
  void add(std::span<const float> state, bool base64);
  // Returns the body of an answer to inputs of `tokens` tokens, as JSON text, and begins the next answer.
  std::string pop_body(std::string_view model, int64_t tokens);
  // The line, with its end; the next one begins. A line that was `refused` has inputs, too, but its answer is its
  // error.
  std::string pop_line(int64_t sample, std::string_view name, std::string_view model, int64_t tokens,
                       std::string_view refused);

 private:
  std::string data_;
  int64_t inputs_ = 0;
  bool not_finite_ = false;  // a value of the states so far
  std::vector<float> unit_;
};

}  // namespace lfm2
