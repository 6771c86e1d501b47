// Builds an answer of OpenAI's interface, as JSON text, from the tokens that are drawn for each of its requests. Used
// by one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "openai/answer/answer_reader.h"
#include "openai/log_probs.h"
#include "openai/openai_request.h"
#include "openai/response.h"

namespace lfm2 {

// An answer with more numbers, such as log-probabilities, is large: a separate thread formats it.
constexpr int64_t kLargeResponse = 1 << 15;

struct StreamEvent {
  std::string data;       // JSON, or "[DONE]"
  std::string name = {};  // "": none
};

class ResponseBuilder {
 public:
  virtual ~ResponseBuilder() = default;

  // Adds the next token of request number `index`. `cached`: the number of its prompt tokens found in the prefix cache.
  // Error(kData) if the answer becomes too large.
  virtual void add(size_t index, const DrawnToken& token, int64_t cached) = 0;
  // Whether all requests have ended.
  virtual bool done() const = 0;
  // Whether body() takes long enough to delay other answers.
  virtual bool large() const = 0;
  // The whole answer, once done().
  virtual std::string body() = 0;

  // For a stream, instead of body(): the events that follow a token of request number `index` (possibly none), and
  // those at the end. `gathers`: text may wait for a later event.
  virtual bool streams() const { return false; }
  virtual std::vector<StreamEvent> events(size_t, bool /*gathers*/) { return {}; }
  virtual std::vector<StreamEvent> last_events() { return {}; }
  // The events that end a stream with an error; by default the body that the error has outside of a stream.
  virtual std::vector<StreamEvent> error_events(int status, std::string_view message);
};

// Of /v1/completions and /v1/chat/completions.
class CompletionBuilder : public ResponseBuilder {
 public:
  // The tokenizer of `facts` must outlive this; without one, choices have token ids and no text. An answer that is no
  // stream has at most max_scored log-probabilities.
  CompletionBuilder(const OpenAiRequest& request, std::string id, ResponseFacts facts, int64_t max_scored);

  void add(size_t index, const DrawnToken& token, int64_t cached) override;
  bool done() const override { return ended_ == std::ssize(choices_); }
  bool large() const override;
  std::string body() override;
  bool streams() const override { return shape_.stream; }
  std::vector<StreamEvent> events(size_t index, bool gathers) override;
  std::vector<StreamEvent> last_events() override;

 private:
  struct Choice {
    Completion completion;               // the whole completion; in a stream, the part not sent yet
    std::optional<AnswerReader> reader;  // empty without a tokenizer
    std::optional<TokenOffsets> offsets;
    std::vector<AnswerPart> parts;  // of the answer; in a stream, those not sent yet
    int64_t sent_calls = 0;
    int64_t tokens = 0, cached = 0;
    bool ended = false;
  };

  bool chat() const { return shape_.form.form == LineForm::kChatCompletion; }
  void add_token(Choice& choice, const DrawnToken& token);
  static void add_text(Choice& choice, const DrawnToken& token);
  std::vector<OrderedJson> deltas(const Choice& choice) const;
  std::string call_ids(const Choice& choice) const;
  std::string chunk(const OrderedJson& choices, const OrderedJson& usage) const;
  OrderedJson usage() const;
  OrderedJson whole_choice(Choice& choice) const;

  const ResponseShape shape_;
  const std::string id_;
  const ResponseFacts facts_;
  const int64_t max_scored_;
  std::vector<Choice> choices_;
  int64_t ended_ = 0, prompt_tokens_ = 0, scored_ = 0;
  bool began_ = false;
};

// Of /v1/embeddings: an embedding for each of the inputs.
class EmbeddingsBuilder : public ResponseBuilder {
 public:
  EmbeddingsBuilder(const EmbeddingsRequest& request, std::string model);

  void add(size_t index, const DrawnToken& token, int64_t) override {
    states_[index] = token.hidden;
    --left_;
  }
  bool done() const override { return left_ == 0; }
  bool large() const override { return std::ssize(states_) * std::ssize(states_.front()) > kLargeResponse; }
  std::string body() override;

 private:
  const bool base64_;
  const std::string model_;
  int64_t tokens_ = 0;                      // of all inputs
  std::vector<std::vector<float>> states_;  // by input; empty until it is computed
  int64_t left_;
};

}  // namespace lfm2
