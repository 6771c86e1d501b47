#include "openai/message.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/json/json.h"

namespace lfm2 {

namespace {

using Kind = AnswerPart::Kind;

std::string text_of(const std::vector<AnswerPart>& parts, Kind kind) {
  std::string text;
  for (const AnswerPart& part : parts)
    if (part.kind == kind) text += part.text;
  return text;
}

OrderedJson call_json(const AnswerPart& call, std::string_view call_ids, int64_t number, std::string_view arguments) {
  return {{"id", fmt::format("{}-{}", call_ids, number)},
          {"type", "function"},
          {"function", {{"name", call.name}, {"arguments", arguments}}}};
}

OrderedJson call_delta(int64_t number, OrderedJson fields) {
  OrderedJson call{{"index", number}};
  call.update(fields);
  OrderedJson delta = OrderedJson::object();
  delta["tool_calls"] = OrderedJson::array({std::move(call)});
  return delta;
}

}  // namespace

int64_t calls_in(const std::vector<AnswerPart>& parts) {
  return std::count_if(parts.begin(), parts.end(), [](const AnswerPart& part) { return part.kind == Kind::kCall; });
}

OrderedJson message_json(const std::vector<AnswerPart>& parts, std::string_view call_ids) {
  const std::string content = text_of(parts, Kind::kContent), thought = text_of(parts, Kind::kThought);
  OrderedJson message{{"role", "assistant"}, {"content", content}, {"refusal", nullptr}};
  if (!thought.empty()) message["reasoning_content"] = message["reasoning"] = thought;
  OrderedJson calls = OrderedJson::array();
  for (const AnswerPart& part : parts)
    if (part.kind == Kind::kCall) calls.push_back(call_json(part, call_ids, std::ssize(calls), part.text));
  if (content.empty() && (!thought.empty() || !calls.empty())) message["content"] = nullptr;
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  return message;
}

std::vector<OrderedJson> message_deltas(const std::vector<AnswerPart>& parts, std::string_view call_ids,
                                        int64_t calls) {
  std::vector<OrderedJson> deltas;
  for (const AnswerPart& part : parts) {
    if (part.kind == Kind::kCall) {
      deltas.push_back(call_delta(calls, call_json(part, call_ids, calls, "")));
      deltas.push_back(call_delta(calls, {{"function", {{"arguments", part.text}}}}));
      ++calls;
    } else if (part.kind == Kind::kThought) {
      deltas.push_back({{"reasoning_content", part.text}, {"reasoning", part.text}});
    } else {
      deltas.push_back({{"content", part.text}});
    }
  }
  return deltas;
}

std::string_view finish_reason(FinishReason reason, int64_t calls) {
  return reason == FinishReason::kStop && calls > 0 ? "tool_calls" : name(reason);
}

}  // namespace lfm2
