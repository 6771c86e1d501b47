// Bodies of /v1/completions, /v1/chat/completions and /v1/embeddings as requests for the generation.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/json/large_json.h"
#include "openai/request_line.h"

namespace lfm2 {

// What the answer to a request looks like.
struct ResponseShape {
  ResponseForm form = {};
  std::vector<std::string> prompts = {};  // with "echo": the text of each prompt
  bool stream = false;
  bool include_usage = false;  // a stream ends with its usage
  bool token_ids = false;      // choices include their token ids; without a tokenizer they always do
  bool prefill_only = false;   // no token is generated: the answer is the prompt, with its log-probabilities
  int32_t choices = 1;         // of each prompt
};

struct ResponsesShape;

struct OpenAiRequest : ResponseShape {
  std::vector<Request> requests = {};       // one for each choice of each prompt, prompt by prompt; `sample` is not set
  std::optional<uint64_t> fresh_seed = {};  // the seed of the first prompt, if the server drew it
  std::shared_ptr<const ResponsesShape> response = {};  // of /v1/responses
};

struct EmbeddingsRequest {
  std::vector<Request> requests = {};  // one for each input; `sample` is not set
  bool base64 = false;                 // embeddings are base64, not lists of numbers
};

// The limits on a request, the same for all requests.
struct RequestLimits {
  int32_t max_top_logprobs = 20;  // of each token
  int64_t max_requests = 128;     // choices of all prompts of one body
  int64_t max_prompt_tokens = 0;  // of one prompt: the positions of the caches
  int64_t max_edits = 0;          // see GenerationPlan
  int64_t max_inputs = 2048;      // of one body of /v1/embeddings
  // Numbers in all embeddings of one body. As text each has up to 15 bytes, 63 MB in all.
  int64_t max_embedded = 1 << 22;
  // The maximum number of log-probabilities of prompts, top logprobs included: in a whole answer, and in the first
  // event of a stream.
  int64_t max_scored = 1 << 20, max_streamed = 1 << 14;
};

// Ignores unknown fields and fields that are null. Error(kData) naming the field for a value of a wrong type or out of
// range, and for fields that are known but not supported. With a `fresh_seed`, a request whose seed is missing or -1
// uses it; each further prompt of a list uses the next number. Many threads may call it.
OpenAiRequest parse_openai_request(std::string_view body, bool chat, const LineContext& context,
                                   const RequestDefaults& defaults, const RequestLimits& limits,
                                   std::optional<uint64_t> fresh_seed = {});

// Its two steps: the body as JSON, then as a request. `responses`: the body is one of /v1/responses that became a chat,
// so its prompt is called "input", and it may have "text.format".
LargeJson parse_request_body(std::string_view body);
OpenAiRequest read_openai_request(const OrderedJson& body, bool chat, const LineContext& context,
                                  const RequestDefaults& defaults, const RequestLimits& limits,
                                  std::optional<uint64_t> fresh_seed, bool responses = false);

// The same for /v1/embeddings. `hidden` selects what an embedding is made of: the last position's hidden state, or the
// mean over all positions.
EmbeddingsRequest parse_embeddings_request(std::string_view body, const LineContext& context, Hidden hidden,
                                           const RequestLimits& limits);

}  // namespace lfm2
