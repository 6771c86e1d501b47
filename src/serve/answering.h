// An answer of /v1/completions or /v1/chat/completions: its choices, and what was drawn for each so far.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "openai/answers.h"
#include "openai/openai_request.h"
#include "openai/tool_calls.h"
#include "serve/live_requests.h"
#include "serve/open_answer.h"
#include "stage/generation/answer_stream.h"

namespace lfm2::serve {

// The tokens between which a model writes calls of tools; -1 where its tokenizer has none.
struct ToolTokens {
  int32_t begin = -1, end = -1;
};

class Answering : public OpenAnswer {
 public:
  // The tokenizer must outlive this; without one the choices have token ids and no text. The requests have the numbers
  // `first_sample` and following. An answer that is no stream may have max_scored log-probabilities: take() throws
  // Error(kData) beyond.
  Answering(const OpenAiRequest& request, int32_t first_sample, http::Responder responder, AnswerFacts facts,
            const Tokenizer* tokenizer, const ToolTokens& tool_tokens, int64_t max_scored, Clock::time_point deadline);

  bool take(const Drawn& drawn) override;
  bool done() const override { return ended_ == std::ssize(choices_); }
  bool finish() override;
  bool large() const override;
  void fail(int status, std::string_view message) override;  // within a stream as an event

 private:
  struct Choice {
    Completion completion;               // whole, or in a stream what was not sent yet
    std::optional<AnswerStream> stream;  // nothing without a tokenizer
    std::optional<TokenOffsets> offsets;
    std::optional<std::vector<int32_t>> call;  // the tokens between those of tool calls
    std::vector<ToolCall> calls;
    std::string text;  // of the answer; in a stream what was not sent yet
    int64_t tokens = 0;
    int64_t cached = 0;  // see Drawn
    bool ended = false;
  };

  struct Shape {
    AnswerForm form;
    bool stream = false, include_usage = false, tools = false, token_ids = false,
         prompt_alone = false;  // see OpenAiRequest
  };

  bool chat() const { return shape_.form.form == LineForm::kChatCompletion; }
  void add_token(Choice& choice, const DrawnToken& token);
  void add_text(Choice& choice, int32_t token, bool ends);
  void end_call(Choice& choice);
  bool has_news(const Choice& choice) const;
  std::string finish_reason(const Choice& choice) const;
  OrderedJson chunk(const OrderedJson& choices) const;
  bool send(const OrderedJson& chunk);
  bool send_delta(Choice& choice);
  bool begin_stream();
  OrderedJson usage() const;
  OrderedJson calls_json(const Choice& choice, bool numbered) const;
  OrderedJson whole_choice(Choice& choice) const;

  const Shape shape_;
  const int32_t choices_of_each_;
  const std::vector<std::string> prompts_;
  const AnswerFacts facts_;
  const Tokenizer* const tokenizer_;
  const ToolTokens tool_tokens_;
  const int64_t max_scored_;
  std::vector<Choice> choices_;
  int64_t ended_ = 0, prompt_tokens_ = 0, scored_ = 0;
  bool began_ = false;
};

}  // namespace lfm2::serve
