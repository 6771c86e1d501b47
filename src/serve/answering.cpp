#include "serve/answering.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/json/json.h"
#include "base/utf8.h"
#include "serve/http/event_stream.h"

namespace lfm2::serve {

Answering::Answering(const OpenAiRequest& request, int32_t first_sample, http::Responder responder, AnswerFacts facts,
                     const Tokenizer* tokenizer, const ToolTokens& tool_tokens, int64_t max_scored,
                     Clock::time_point deadline)
    : OpenAnswer(first_sample, static_cast<int32_t>(request.requests.size()), std::move(responder), deadline),
      shape_{.form = request.form,
             .stream = request.stream,
             .include_usage = request.include_usage,
             .tools = request.tools && tool_tokens.begin >= 0,
             .token_ids = request.token_ids,
             .prompt_alone = request.prompt_alone},
      choices_of_each_(request.choices),
      prompts_(request.prompts),
      facts_(std::move(facts)),
      tokenizer_(tokenizer),
      tool_tokens_(tool_tokens),
      max_scored_(max_scored),
      choices_(request.requests.size()) {
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    choice.completion.choice = static_cast<int32_t>(i);
    if (tokenizer != nullptr) choice.stream.emplace(*tokenizer, request.requests[i]);
    choice.offsets.emplace(tokenizer);
    if (i % static_cast<size_t>(choices_of_each_) == 0) prompt_tokens_ += std::ssize(request.requests[i].prompt);
    if (shape_.form.echo && shape_.form.log_probs) choice.completion.prompt_ids = request.requests[i].prompt;
    if (!prompts_.empty()) choice.text = prompts_[i / static_cast<size_t>(choices_of_each_)];
  }
}

// What a token adds to the text. Calls of tools are kept out of it.
void Answering::add_text(Choice& choice, int32_t token, bool ends) {
  if (!choice.stream) return;
  if (shape_.tools && token == tool_tokens_.begin && !choice.call) {
    choice.call.emplace();
    choice.text += choice.stream->hide(token);
  } else if (choice.call && token == tool_tokens_.end) {
    end_call(choice);
    choice.text += choice.stream->hide(token);
  } else if (choice.call) {
    choice.call->push_back(token);
  } else {
    choice.text += choice.stream->feed(token);
  }
  if (!ends) return;
  if (choice.call) end_call(choice);  // the model forgot to
  choice.text += choice.stream->flush();
}

// What is no call is text after all, and ends where a stop text begins.
void Answering::end_call(Choice& choice) {
  const std::vector<int32_t> tokens = *std::exchange(choice.call, {});
  std::string text;
  for (const int32_t token : tokens)
    if (!tokenizer_->is_special(token)) text += tokenizer_->bytes(token);
  if (std::optional<std::vector<ToolCall>> calls = parse_tool_calls(text)) {
    std::move(calls->begin(), calls->end(), std::back_inserter(choice.calls));
    for (const int32_t token : tokens) choice.text += choice.stream->hide(token);
  } else {
    for (const int32_t token : tokens) choice.text += choice.stream->feed(token);
  }
}

std::string Answering::finish_reason(const Choice& choice) const {
  if (!choice.calls.empty() && choice.completion.reason == FinishReason::kStop) return "tool_calls";
  return std::string(name(choice.completion.reason));
}

OrderedJson Answering::calls_json(const Choice& choice, bool numbered) const {
  OrderedJson calls = OrderedJson::array();
  for (size_t i = 0; i < choice.calls.size(); ++i) {
    const ToolCall& call = choice.calls[i];
    OrderedJson one = OrderedJson::object();
    if (numbered) one["index"] = i;
    one["id"] = fmt::format("call-{}-{}-{}", facts_.id, choice.completion.choice, i);
    one["type"] = "function";
    one["function"] = {{"name", call.name}, {"arguments", call.arguments}};
    calls.push_back(std::move(one));
  }
  return calls;
}

void Answering::add_token(Choice& choice, const DrawnToken& token) {
  Completion& completion = choice.completion;
  if (shape_.form.log_probs && !shape_.stream) scored_ += 1 + std::ssize(token.top_ids);
  if (scored_ > max_scored_)
    throw Error(ExitCode::kData,
                fmt::format("the answer has more than {} log-probabilities: ask for fewer tokens, choices or "
                            "\"top_logprobs\", or for a stream",
                            max_scored_));
  completion.token_ids.push_back(token.token);
  completion.log_probs.push_back(token.log_prob);
  completion.top_ids.insert(completion.top_ids.end(), token.top_ids.begin(), token.top_ids.end());
  completion.top_log_probs.insert(completion.top_log_probs.end(), token.top_log_probs.begin(),
                                  token.top_log_probs.end());
  ++choice.tokens;
}

// Whether the next piece of a stream would say anything.
bool Answering::has_news(const Choice& choice) const {
  return choice.ended || (choice.stream ? !choice.text.empty() : !choice.completion.token_ids.empty());
}

bool Answering::take(const Drawn& drawn) {
  const DrawnToken& token = drawn.token;
  Choice& choice = choices_[static_cast<size_t>(drawn.sample - first_sample_)];
  if (!token.prompt.log_probs.empty()) choice.completion.prompt = token.prompt;
  if (!shape_.prompt_alone) {
    choice.cached = drawn.cached;
    add_token(choice, token);
    add_text(choice, token.token, token.ends.has_value());
  }
  if (token.ends) {
    choice.completion.reason = *token.ends;
    choice.ended = true;
    ++ended_;
  }
  // The text of a client that is behind gathers until a token finds room, or the last one: an event for each token
  // takes some forty times its bytes, and a client that was held up for a second would be disconnected.
  // Log-probabilities would be as large in one event.
  const bool gathers = !shape_.form.log_probs && responder_.behind();
  const bool waits = !has_news(choice) || (gathers && !choice.ended);
  const bool wanted = !shape_.stream || waits || send_delta(choice);
  return wanted && !responder_.gone();
}

bool Answering::begin_stream() {
  began_ = true;
  if (!responder_.begin_stream(200, http::kEventStream, {{"Cache-Control", "no-cache"}})) return false;
  if (!chat()) return true;
  for (size_t i = 0; i < choices_.size(); ++i)
    if (!send(chunk({{{"index", i},
                      {"delta", {{"role", "assistant"}, {"content", ""}}},
                      {"logprobs", nullptr},
                      {"finish_reason", nullptr}}})))
      return false;
  return true;
}

OrderedJson Answering::chunk(const OrderedJson& choices) const {
  return {{"id", facts_.id},
          {"object", chat() ? "chat.completion.chunk" : "text_completion"},
          {"created", facts_.created},
          {"model", facts_.model},
          {"choices", choices}};
}

bool Answering::send(const OrderedJson& chunk) { return responder_.write(http::event_text(json_text(chunk))); }

// Sends what of the choice was not sent yet.
bool Answering::send_delta(Choice& choice) {
  if (!began_ && !begin_stream()) return false;
  const OrderedJson probs = log_probs_json(choice.completion, shape_.form, tokenizer_, *choice.offsets);
  const OrderedJson reason = choice.ended ? OrderedJson(finish_reason(choice)) : OrderedJson();
  const int32_t index = choice.completion.choice;
  OrderedJson choices = OrderedJson::array();
  if (chat()) {
    OrderedJson delta = OrderedJson::object();
    if (!choice.text.empty()) delta["content"] = choice.text;
    if (choice.ended && !choice.calls.empty()) delta["tool_calls"] = calls_json(choice, true);
    if (!delta.empty() || !probs.is_null() || shape_.token_ids)
      choices.push_back({{"index", index}, {"delta", delta}, {"logprobs", probs}, {"finish_reason", nullptr}});
  } else {
    choices.push_back({{"index", index}, {"text", choice.text}, {"logprobs", probs}, {"finish_reason", reason}});
  }
  if (shape_.token_ids) choices.back()["token_ids"] = choice.completion.token_ids;
  bool wanted = choices.empty() || send(chunk(choices));
  if (chat() && choice.ended)
    wanted =
        wanted &&
        send(chunk(
            {{{"index", index}, {"delta", OrderedJson::object()}, {"logprobs", nullptr}, {"finish_reason", reason}}}));
  choice.text.clear();
  for (auto* list : {&choice.completion.token_ids, &choice.completion.top_ids, &choice.completion.prompt_ids})
    list->clear();
  for (auto* list : {&choice.completion.log_probs, &choice.completion.top_log_probs}) list->clear();
  return wanted;
}

OrderedJson Answering::usage() const {
  int64_t tokens = 0, cached = 0;
  for (const Choice& choice : choices_) tokens += choice.tokens;
  for (size_t i = 0; i < choices_.size(); i += static_cast<size_t>(choices_of_each_)) cached += choices_[i].cached;
  OrderedJson usage = usage_json(prompt_tokens_, tokens);
  usage["prompt_tokens_details"] = {{"cached_tokens", cached}};
  return usage;
}

OrderedJson Answering::whole_choice(Choice& choice) const {
  OrderedJson whole{{"index", choice.completion.choice}};
  if (chat()) {
    OrderedJson& message = whole["message"];
    message = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
    if (!choice.calls.empty()) {
      if (choice.text.empty()) message["content"] = nullptr;
      message["tool_calls"] = calls_json(choice, false);
    }
  } else {
    whole["text"] = choice.text;
  }
  if (shape_.token_ids) whole["token_ids"] = choice.completion.token_ids;
  whole["logprobs"] = log_probs_json(choice.completion, shape_.form, tokenizer_, *choice.offsets);
  whole["finish_reason"] = finish_reason(choice);
  return whole;
}

// What a stream has left is short.
bool Answering::large() const {
  int64_t numbers = 0;
  for (const Choice& choice : choices_)
    for (const auto* list : {&choice.completion.log_probs, &choice.completion.top_log_probs,
                             &choice.completion.prompt.log_probs, &choice.completion.prompt.top_log_probs})
      numbers += std::ssize(*list);
  return !shape_.stream && shape_.form.log_probs && numbers > kLargeAnswer;
}

bool Answering::finish() {
  if (shape_.stream) {
    if (shape_.include_usage) {
      OrderedJson last = chunk(OrderedJson::array());
      last["usage"] = usage();
      send(last);
    }
    return responder_.write(http::event_text("[DONE]")) && responder_.end();
  }
  OrderedJson choices = OrderedJson::array();
  for (Choice& choice : choices_) choices.push_back(whole_choice(choice));
  const OrderedJson body = answer_body(std::move(choices), shape_.form, facts_, usage());
  return responder_.answer({.content_type = "application/json", .body = json_text(body)});
}

void Answering::fail(int status, std::string_view message) {
  const http::Answer error = http::error_answer(status, message);
  if (!began_) {
    responder_.answer(error);
  } else if (responder_.write(http::event_text(error.body))) {
    responder_.end();
  }
}

}  // namespace lfm2::serve
