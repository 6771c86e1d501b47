// An answer of OpenAI's interface while its tokens come: what was drawn for each of its requests, as JSON text. Used by
// one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "openai/openai_request.h"
#include "openai/response.h"
#include "openai/tool_calls.h"
#include "text/answer_stream.h"

namespace lfm2 {

class TextModel;

// Numbers of an answer, such as log-probabilities: writing more than these as text takes some 10 ms.
constexpr int64_t kLargeResponse = 1 << 15;

class ResponseBuilder {
 public:
  virtual ~ResponseBuilder() = default;

  // The next token of request number `index`. `cached`: tokens of its prompt that the prefix cache had. Error(kData)
  // where the answer becomes larger than it may be.
  virtual void add(size_t index, const DrawnToken& token, int64_t cached) = 0;
  // All of the requests have ended.
  virtual bool done() const = 0;
  // Its body() takes long enough to hold up the answers of others.
  virtual bool large() const = 0;
  // The whole answer, once it is done.
  virtual std::string body() = 0;

  // Instead of body() for a stream: the events that follow a token of request number `index`, which may be none, and
  // those at the end. `gathers`: text may wait for a later event.
  virtual bool streams() const { return false; }
  virtual std::vector<std::string> events(size_t, bool /*gathers*/) { return {}; }
  virtual std::vector<std::string> last_events() { return {}; }
};

// The tokens between which a model writes calls of tools; -1 where its tokenizer has none.
struct ToolTokens {
  int32_t begin = -1, end = -1;
};
ToolTokens tool_tokens_of(const TextModel* text);

// Of /v1/completions and /v1/chat/completions.
class CompletionBuilder : public ResponseBuilder {
 public:
  // The tokenizer of `facts` must outlive this; without one the choices have token ids and no text. An answer that is
  // no stream may have max_scored log-probabilities.
  CompletionBuilder(const OpenAiRequest& request, std::string id, ResponseFacts facts, const ToolTokens& tool_tokens,
                    int64_t max_scored);

  void add(size_t index, const DrawnToken& token, int64_t cached) override;
  bool done() const override { return ended_ == std::ssize(choices_); }
  bool large() const override;
  std::string body() override;
  bool streams() const override { return shape_.stream; }
  std::vector<std::string> events(size_t index, bool gathers) override;
  std::vector<std::string> last_events() override;

 private:
  struct Choice {
    Completion completion;               // whole, or in a stream what was not sent yet
    std::optional<AnswerStream> stream;  // nothing without a tokenizer
    std::optional<TokenOffsets> offsets;
    std::optional<std::vector<int32_t>> call;  // the tokens between those of tool calls
    std::vector<ToolCall> calls;
    std::string text;  // of the answer; in a stream what was not sent yet
    int64_t tokens = 0, cached = 0;
    bool ended = false;
  };

  bool chat() const { return shape_.form.form == LineForm::kChatCompletion; }
  void add_token(Choice& choice, const DrawnToken& token);
  void add_text(Choice& choice, int32_t token, bool ends);
  void end_call(Choice& choice);
  std::string finish_reason(const Choice& choice) const;
  std::string chunk(const OrderedJson& choices, const OrderedJson& usage) const;
  OrderedJson usage() const;
  OrderedJson calls_json(const Choice& choice, bool numbered) const;
  OrderedJson whole_choice(Choice& choice) const;

  const ResponseShape shape_;
  const std::string id_;
  const ResponseFacts facts_;
  const ToolTokens tool_tokens_;
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
  std::vector<std::vector<float>> states_;  // by input; empty where it is still to come
  int64_t left_;
};

}  // namespace lfm2
