#include "openai/response_builder.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "base/json/error_json.h"
#include "base/json/json.h"
#include "openai/message.h"

namespace lfm2 {

std::vector<StreamEvent> ResponseBuilder::error_events(int status, std::string_view message) {
  return {StreamEvent{json_text(OrderedJson{{"error", error_object(message, status)}})}};
}

CompletionBuilder::CompletionBuilder(const OpenAiRequest& request, std::string id, ResponseFacts facts,
                                     int64_t max_scored)
    : shape_(request),
      id_(std::move(id)),
      facts_(std::move(facts)),
      max_scored_(max_scored),
      choices_(request.requests.size()) {
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    const Request& asked = request.requests[i];
    const size_t prompt = i / static_cast<size_t>(shape_.choices);
    choice.completion.choice = static_cast<int32_t>(i);
    if (facts_.tokenizer != nullptr)
      choice.reader.emplace(facts_.answer_tokens, shape_.form.message,
                            SettledTokens(*facts_.tokenizer, asked.stop, asked.rule.min_tokens));
    choice.offsets.emplace(facts_.tokenizer);
    if (i % static_cast<size_t>(shape_.choices) == 0) prompt_tokens_ += std::ssize(asked.prompt);
    if (shape_.form.echo && shape_.form.log_probs) choice.completion.prompt_ids = asked.prompt;
    if (!shape_.prompts.empty()) append_part(choice.parts, {AnswerPart::Kind::kContent, shape_.prompts[prompt]});
  }
}

void CompletionBuilder::add_text(Choice& choice, const DrawnToken& token) {
  if (!choice.reader) return;
  choice.reader->feed(token.token);
  if (token.ends) choice.reader->end(*token.ends == FinishReason::kLength);
  for (AnswerPart& part : choice.reader->pop_parts()) append_part(choice.parts, std::move(part));
}

std::string CompletionBuilder::call_ids(const Choice& choice) const {
  return fmt::format("call-{}-{}", id_, choice.completion.choice);
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
  completion.drafts.add(token);
}

void CompletionBuilder::add(size_t index, const DrawnToken& token, int64_t cached) {
  Choice& choice = choices_[index];
  if (!token.prompt.log_probs.empty()) choice.completion.prompt = token.prompt;
  if (!shape_.prefill_only) {
    choice.cached = cached;
    add_token(choice, token);
    add_text(choice, token);
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

// What the events of a stream add to the choice; with log-probabilities or token ids there is one event at least.
std::vector<OrderedJson> CompletionBuilder::deltas(const Choice& choice) const {
  std::vector<OrderedJson> deltas;
  if (chat())
    deltas = message_deltas(choice.parts, call_ids(choice), choice.sent_calls);
  else
    deltas.push_back(choice.parts.empty() ? "" : choice.parts.front().text);
  if (deltas.empty() && (shape_.form.log_probs || shape_.token_ids)) deltas.push_back(OrderedJson::object());
  return deltas;
}

// The part of the choice that was not sent yet.
std::vector<StreamEvent> CompletionBuilder::events(size_t index, bool gathers) {
  Choice& choice = choices_[index];
  const bool news = choice.ended || (choice.reader ? !choice.parts.empty() : !choice.completion.token_ids.empty());
  if (!news || (gathers && !shape_.form.log_probs && !choice.ended))
    return {};  // to delay log-probabilities would save no time
  std::vector<StreamEvent> events;
  const auto add = [&](size_t number, const OrderedJson& delta, OrderedJson probs, OrderedJson reason, bool ids) {
    OrderedJson one{{"index", number}, {chat() ? "delta" : "text", delta}};
    one["logprobs"] = std::move(probs);
    one["finish_reason"] = std::move(reason);
    if (ids) one["token_ids"] = choice.completion.token_ids;
    events.push_back({chunk(OrderedJson::array({std::move(one)}), nullptr)});
  };
  if (chat() && !std::exchange(began_, true))
    for (size_t i = 0; i < choices_.size(); ++i)
      add(i, {{"role", "assistant"}, {"content", ""}}, nullptr, nullptr, false);
  // The first event has what belongs to tokens.
  OrderedJson probs = log_probs_json(choice.completion, shape_.form, facts_.tokenizer, *choice.offsets);
  const int64_t calls = choice.sent_calls + calls_in(choice.parts);
  const OrderedJson reason = choice.ended ? OrderedJson(finish_reason(choice.completion.reason, calls)) : OrderedJson();
  bool first = true;
  for (const OrderedJson& delta : deltas(choice)) {
    add(index, delta, std::exchange(probs, nullptr), chat() ? OrderedJson() : reason, first && shape_.token_ids);
    first = false;
  }
  if (chat() && choice.ended) add(index, OrderedJson::object(), nullptr, reason, false);
  choice.sent_calls = calls;
  choice.parts.clear();
  for (auto* list : {&choice.completion.token_ids, &choice.completion.top_ids, &choice.completion.prompt_ids})
    list->clear();
  for (auto* list : {&choice.completion.log_probs, &choice.completion.top_log_probs}) list->clear();
  return events;
}

std::vector<StreamEvent> CompletionBuilder::last_events() {
  std::vector<StreamEvent> events;
  if (shape_.include_usage) events.push_back({chunk(OrderedJson::array(), usage())});
  events.push_back({"[DONE]"});
  return events;
}

OrderedJson CompletionBuilder::usage() const {
  int64_t tokens = 0, cached = 0, thought = 0;
  DraftCounts drafts;
  for (const Choice& choice : choices_) tokens += choice.tokens;
  for (const Choice& choice : choices_) drafts.add(choice.completion.drafts);
  for (const Choice& choice : choices_) thought += choice.reader ? choice.reader->thought_tokens() : 0;
  for (size_t i = 0; i < choices_.size(); i += static_cast<size_t>(shape_.choices)) cached += choices_[i].cached;
  OrderedJson usage = usage_json(prompt_tokens_, tokens, chat() ? std::optional(thought) : std::nullopt, drafts);
  usage["prompt_tokens_details"] = {{"cached_tokens", cached}};
  return usage;
}

OrderedJson CompletionBuilder::whole_choice(Choice& choice) const {
  OrderedJson whole{{"index", choice.completion.choice}};
  if (chat())
    whole["message"] = message_json(choice.parts, call_ids(choice));
  else
    whole["text"] = choice.parts.empty() ? "" : choice.parts.front().text;
  if (shape_.token_ids) whole["token_ids"] = choice.completion.token_ids;
  whole["logprobs"] = log_probs_json(choice.completion, shape_.form, facts_.tokenizer, *choice.offsets);
  whole["finish_reason"] = finish_reason(choice.completion.reason, calls_in(choice.parts));
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
