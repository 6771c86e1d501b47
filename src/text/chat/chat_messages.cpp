#include "text/chat/chat_messages.h"

#include <fmt/format.h>

#include <string>

#include "kernels/error.h"
#include "stage/support/json.h"

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

void put_content(OrderedJson& message, size_t number, bool parts_stay) {
  const auto content = message.find("content");
  if (content == message.end()) {
    if (message.contains("tool_calls")) message["content"] = "";
  } else if (content->is_null()) {
    *content = "";
  } else if (content->is_array()) {
    std::string all;
    for (size_t i = 0; i < content->size(); ++i) (all += i == 0 ? "" : "\n") += text_of_part((*content)[i], number);
    if (!parts_stay) *content = std::move(all);
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
    OrderedJson object;
    try {
      object = parse_ordered_json(arguments->get_ref<const std::string&>(), "arguments");
    } catch (const Error&) {
      continue;  // the template says what it makes of such a text
    }
    if (object.is_object()) *arguments = std::move(object);
  }
}

}  // namespace

bool takes_parts(std::string_view template_source) {
  return template_source.find("\"text\"") != std::string_view::npos ||
         template_source.find("'text'") != std::string_view::npos;
}

OrderedJson template_messages(const OrderedJson& messages, bool takes_parts) {
  OrderedJson taken = messages;
  for (size_t i = 0; i < taken.size(); ++i) {
    if (!taken[i].is_object()) continue;
    put_content(taken[i], i, takes_parts);
    put_arguments(taken[i]);
  }
  return taken;
}

}  // namespace lfm2
