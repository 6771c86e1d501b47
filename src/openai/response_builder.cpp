#include "openai/response_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/json/json.h"
#include "text/text_model.h"

namespace lfm2 {

namespace {

int32_t token_named(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids;
  tokenizer.encode(text, false, ids);
  return ids.size() == 1 ? ids.front() : -1;
}

}  // namespace

ToolTokens tool_tokens_of(const TextModel* text) {
  if (text == nullptr) return {};
  const Tokenizer& tokenizer = text->tokenizer();
  const ToolTokens tokens{token_named(tokenizer, "<|tool_call_start|>"), token_named(tokenizer, "<|tool_call_end|>")};
  return tokens.end >= 0 ? tokens : ToolTokens{};
}

CompletionBuilder::CompletionBuilder(const OpenAiRequest& request, std::string id, ResponseFacts facts,
                                     const ToolTokens& tool_tokens, int64_t max_scored)
    : shape_(request),
      id_(std::move(id)),
      facts_(std::move(facts)),
      tool_tokens_(request.tools ? tool_tokens : ToolTokens{}),
      max_scored_(max_scored),
      choices_(request.requests.size()) {
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    const Request& asked = request.requests[i];
    const size_t prompt = i / static_cast<size_t>(shape_.choices);
    choice.completion.choice = static_cast<int32_t>(i);
    if (facts_.tokenizer != nullptr) choice.stream.emplace(*facts_.tokenizer, asked.stop, asked.rule.min_tokens);
    choice.offsets.emplace(facts_.tokenizer);
    if (i % static_cast<size_t>(shape_.choices) == 0) prompt_tokens_ += std::ssize(asked.prompt);
    if (shape_.form.echo && shape_.form.log_probs) choice.completion.prompt_ids = asked.prompt;
    if (!shape_.prompts.empty()) choice.text = shape_.prompts[prompt];
  }
}

// Appends a token's text, without the text of tool calls.
void CompletionBuilder::add_text(Choice& choice, int32_t token, bool ends) {
  if (!choice.stream) return;
  if (token == tool_tokens_.begin && !choice.call) {
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

// Text that turned out to be no call counts as text, and ends at the first stop text.
void CompletionBuilder::end_call(Choice& choice) {
  const std::vector<int32_t> tokens = *std::exchange(choice.call, {});
  std::string text;
  for (const int32_t token : tokens)
    if (!facts_.tokenizer->is_special(token)) text += facts_.tokenizer->bytes(token);
  if (std::optional<std::vector<ToolCall>> calls = parse_tool_calls(text)) {
    std::move(calls->begin(), calls->end(), std::back_inserter(choice.calls));
    for (const int32_t token : tokens) choice.text += choice.stream->hide(token);
  } else {
    for (const int32_t token : tokens) choice.text += choice.stream->feed(token);
  }
}

std::string CompletionBuilder::finish_reason(const Choice& choice) const {
  if (!choice.calls.empty() && choice.completion.reason == FinishReason::kStop) return "tool_calls";
  return std::string(name(choice.completion.reason));
}

OrderedJson CompletionBuilder::calls_json(const Choice& choice, bool numbered) const {
  OrderedJson calls = OrderedJson::array();
  for (size_t i = 0; i < choice.calls.size(); ++i) {
    const ToolCall& call = choice.calls[i];
    OrderedJson one = OrderedJson::object();
    if (numbered) one["index"] = i;
    one["id"] = fmt::format("call-{}-{}-{}", id_, choice.completion.choice, i);
    one["type"] = "function";
    one["function"] = {{"name", call.name}, {"arguments", call.arguments}};
    calls.push_back(std::move(one));
  }
  return calls;
}

void CompletionBuilder::add_token(Choice& choice, const DrawnToken& token) {
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

void CompletionBuilder::add(size_t index, const DrawnToken& token, int64_t cached) {
  Choice& choice = choices_[index];
  if (!token.prompt.log_probs.empty()) choice.completion.prompt = token.prompt;
  if (!shape_.prefill_only) {
    choice.cached = cached;
    add_token(choice, token);
    add_text(choice, token.token, token.ends.has_value());
  }
  if (!token.ends) return;
  choice.completion.reason = *token.ends;
  choice.ended = true;
  ++ended_;
}

std::string CompletionBuilder::chunk(const OrderedJson& choices, const OrderedJson& usage) const {
  OrderedJson chunk{{"id", id_},
                    {"object", chat() ? "chat.completion.chunk" : "text_completion"},
                    {"created", facts_.created},
                    {"model", facts_.model},
                    {"choices", choices}};
  if (!usage.is_null()) chunk["usage"] = usage;
  return json_text(chunk);
}

// The part of the choice that was not sent yet.
std::vector<std::string> CompletionBuilder::events(size_t index, bool gathers) {
  Choice& choice = choices_[index];
  const bool news = choice.ended || (choice.stream ? !choice.text.empty() : !choice.completion.token_ids.empty());
  if (!news || (gathers && !shape_.form.log_probs && !choice.ended))
    return {};  // to delay log-probabilities would save no time
  std::vector<std::string> events;
  const auto add = [&](size_t number, const OrderedJson& delta, const OrderedJson& probs, const OrderedJson& reason) {
    events.push_back(
        chunk({{{"index", number}, {"delta", delta}, {"logprobs", probs}, {"finish_reason", reason}}}, nullptr));
  };
  if (chat() && !std::exchange(began_, true))
    for (size_t i = 0; i < choices_.size(); ++i) add(i, {{"role", "assistant"}, {"content", ""}}, nullptr, nullptr);
  const OrderedJson probs = log_probs_json(choice.completion, shape_.form, facts_.tokenizer, *choice.offsets);
  const OrderedJson reason = choice.ended ? OrderedJson(finish_reason(choice)) : OrderedJson();
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
  if (!choices.empty()) events.push_back(chunk(choices, nullptr));
  if (chat() && choice.ended) add(index, OrderedJson::object(), nullptr, reason);
  choice.text.clear();
  for (auto* list : {&choice.completion.token_ids, &choice.completion.top_ids, &choice.completion.prompt_ids})
    list->clear();
  for (auto* list : {&choice.completion.log_probs, &choice.completion.top_log_probs}) list->clear();
  return events;
}

std::vector<std::string> CompletionBuilder::last_events() {
  if (!shape_.include_usage) return {"[DONE]"};
  return {chunk(OrderedJson::array(), usage()), "[DONE]"};
}

OrderedJson CompletionBuilder::usage() const {
  int64_t tokens = 0, cached = 0;
  for (const Choice& choice : choices_) tokens += choice.tokens;
  for (size_t i = 0; i < choices_.size(); i += static_cast<size_t>(shape_.choices)) cached += choices_[i].cached;
  OrderedJson usage = usage_json(prompt_tokens_, tokens);
  usage["prompt_tokens_details"] = {{"cached_tokens", cached}};
  return usage;
}

OrderedJson CompletionBuilder::whole_choice(Choice& choice) const {
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
  whole["logprobs"] = log_probs_json(choice.completion, shape_.form, facts_.tokenizer, *choice.offsets);
  whole["finish_reason"] = finish_reason(choice);
  return whole;
}

// The rest of a stream is short.
bool CompletionBuilder::large() const {
  int64_t numbers = 0;
  for (const Choice& choice : choices_)
    for (const auto* list : {&choice.completion.log_probs, &choice.completion.top_log_probs,
                             &choice.completion.prompt.log_probs, &choice.completion.prompt.top_log_probs})
      numbers += std::ssize(*list);
  return !shape_.stream && shape_.form.log_probs && numbers > kLargeResponse;
}

std::string CompletionBuilder::body() {
  OrderedJson choices = OrderedJson::array();
  for (Choice& choice : choices_) choices.push_back(whole_choice(choice));
  return json_text(response_body(id_, std::move(choices), shape_.form, facts_, usage()));
}

EmbeddingsBuilder::EmbeddingsBuilder(const EmbeddingsRequest& request, std::string model)
    : base64_(request.base64), model_(std::move(model)), states_(request.requests.size()), left_(std::ssize(states_)) {
  for (const Request& one : request.requests) tokens_ += std::ssize(one.prompt);
}

std::string EmbeddingsBuilder::body() {
  EmbeddingResponse answer;
  for (const std::vector<float>& state : states_) answer.add(state, base64_);
  return answer.pop_body(model_, tokens_);
}

}  // namespace lfm2
