#include "text/chat/chat_messages.h"

#include <fmt/format.h>

#include <string>

#include "base/error.h"

namespace lfm2 {

namespace {

const std::string& text_of_part(const OrderedJson& part, size_t message) {
  const OrderedJson kind = part.is_object() ? part.value("type", OrderedJson()) : OrderedJson();
  const auto text = part.is_object() ? part.find("text") : part.end();
  if (kind != "text" || text == part.end() || !text->is_string())
    throw Error(ExitCode::kData,
                fmt::format("\"messages\": a part of message {} has \"type\" {}, expected \"text\" and "
                            "a text",
                            message + 1, json_excerpt(kind)));
  return text->get_ref<const std::string&>();
}

[[noreturn]] void refuse(const std::string& place, const OrderedJson& message, std::string_view key,
                         std::string_view expected) {
  const auto found = message.find(key);
  throw Error(ExitCode::kData, fmt::format("\"{}.{}\" is {}, expected {}", place, key,
                                           found == message.end() ? "missing" : json_excerpt(*found), expected));
}

// Checks the fields that templates assume, so that the error names the field instead of a line of the template.
void check_message(const OrderedJson& message, size_t number) {
  const std::string place = fmt::format("messages[{}]", number);
  if (!message.is_object())
    throw Error(ExitCode::kData, fmt::format("\"{}\" is {}, expected an object", place, json_excerpt(message)));
  const auto role = message.find("role"), content = message.find("content");
  if (role == message.end() || !role->is_string()) refuse(place, message, "role", "text");
  const bool fits = content == message.end() ? message.contains("tool_calls")
                                             : content->is_string() || content->is_null() || content->is_array();
  if (!fits) refuse(place, message, "content", "text or a list of parts");
}

void put_content(OrderedJson& message, size_t number, bool parts_stay) {
  const auto content = message.find("content");
  if (content == message.end()) {
    if (message.contains("tool_calls")) message["content"] = "";
  } else if (content->is_null()) {
    *content = "";
  } else if (content->is_array()) {
    std::string all;
    for (size_t i = 0; i < content->size(); ++i) (all += i == 0 ? "" : "\n") += text_of_part((*content)[i], number);
    if (parts_stay) return;
    empty_json(*content);
    *content = std::move(all);
  }
}

void put_arguments(OrderedJson& message) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || !calls->is_array()) return;
  for (OrderedJson& call : *calls) {
    const auto function = call.is_object() ? call.find("function") : call.end();
    if (!call.is_object() || function == call.end() || !function->is_object()) continue;
    const auto arguments = function->find("arguments");
    if (arguments == function->end() || !arguments->is_string()) continue;
    LargeJson object;
    try {
      object = parse_large_json(arguments->get_ref<const std::string&>(), "arguments", LargeIntegers::kRefused);
    } catch (const Error&) {
      continue;  // the template decides how to interpret such a text
    }
    if (object->is_object()) *arguments = std::move(*object);
  }
}

}  // namespace

bool accepts_parts(std::string_view template_source) {
  return template_source.find("\"text\"") != std::string_view::npos ||
         template_source.find("'text'") != std::string_view::npos;
}

LargeJson template_messages(const OrderedJson& messages, bool accepts_parts) {
  LargeJson copy(new OrderedJson(messages));
  OrderedJson& taken = *copy;
  for (size_t i = 0; i < taken.size(); ++i) {
    check_message(taken[i], i);
    put_content(taken[i], i, accepts_parts);
    put_arguments(taken[i]);
  }
  return copy;
}

}  // namespace lfm2
