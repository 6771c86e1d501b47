#include "serve/embeddings_answering.h"

#include "openai/answers.h"

namespace lfm2::serve {

EmbeddingsAnswering::EmbeddingsAnswering(const EmbeddingsRequest& request, int32_t first_sample,
                                         http::Responder responder, std::string model, Clock::time_point deadline)
    : OpenAnswer(first_sample, static_cast<int32_t>(request.requests.size()), std::move(responder), deadline),
      base64_(request.base64),
      model_(std::move(model)),
      states_(request.requests.size()),
      left_(std::ssize(states_)) {
  for (const Request& one : request.requests) tokens_ += std::ssize(one.prompt);
}

bool EmbeddingsAnswering::take(const Drawn& drawn) {
  states_[static_cast<size_t>(drawn.sample - first_sample_)] = drawn.token.hidden;
  --left_;
  return !responder_.gone();
}

bool EmbeddingsAnswering::large() const { return std::ssize(states_) * std::ssize(states_.front()) > kLargeAnswer; }

bool EmbeddingsAnswering::finish() {
  EmbeddingAnswer answer;
  for (const std::vector<float>& state : states_) answer.add(state, base64_);
  return responder_.answer({.content_type = "application/json", .body = answer.take_body(model_, tokens_)});
}

}  // namespace lfm2::serve
