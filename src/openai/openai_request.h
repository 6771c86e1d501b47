// Bodies of /v1/completions, /v1/chat/completions and /v1/embeddings as requests for the generation.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "openai/request_line.h"

namespace lfm2 {

// What the answer to a request looks like.
struct ResponseShape {
  ResponseForm form = {};
  std::vector<std::string> prompts = {};  // with "echo": the text of each prompt
  bool stream = false;
  bool include_usage = false;  // a stream ends with its usage
  bool tools = false;          // calls of tools are looked for
  bool token_ids = false;      // choices have their token ids, as they always do where there is no tokenizer
  bool prefill_only = false;   // no token is asked for: the answer is the prompt, with its log-probabilities
  int32_t choices = 1;         // of each prompt
};

struct OpenAiRequest : ResponseShape {
  std::vector<Request> requests = {};  // one for each choice of each prompt, prompt by prompt; without their numbers
  std::optional<uint64_t> fresh_seed = {};  // that the first prompt draws by
};

struct EmbeddingsRequest {
  std::vector<Request> requests = {};  // one for each input; without their numbers
  bool base64 = false;                 // how embeddings are written
};

// What may be asked for, the same for all requests.
struct RequestLimits {
  int32_t max_top_logprobs = 20;  // tokens that are named beside each
  int64_t max_requests = 128;     // choices of all prompts of one body
  int64_t max_prompt_tokens = 0;  // of one prompt: the positions of the caches
  int64_t max_edits = 0;          // see GenerationPlan
  int64_t max_inputs = 2048;      // of one body of /v1/embeddings
  // Numbers of all embeddings of one body: as text they take up to 15 bytes each, 63 MB.
  int64_t max_embedded = 1 << 22;
  // The most log-probabilities of prompts, top logprobs included: in an answer, and in the first piece of a stream.
  int64_t max_scored = 1 << 20, max_streamed = 1 << 14;
};

// Fields that are null or not known are as if they were not there. Error(kData), with the field's name, for values of
// other types or outside of their ranges, and for what is known and not supported. Where there is a `fresh_seed`, a
// request without a seed, or with -1, draws by it: each prompt of a list by the next one. May be called by many
// threads.
OpenAiRequest parse_openai_request(std::string_view body, bool chat, const LineContext& context,
                                   const RequestDefaults& defaults, const RequestLimits& limits,
                                   std::optional<uint64_t> fresh_seed = {});

// The same for /v1/embeddings. An embedding is made of the hidden state of the last position, or of the mean of all.
EmbeddingsRequest parse_embeddings_request(std::string_view body, const LineContext& context, Hidden hidden,
                                           const RequestLimits& limits);

}  // namespace lfm2
