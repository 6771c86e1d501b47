#include "text/chat/tool_call_text.h"

#include <algorithm>

#include "base/json/json.h"

namespace lfm2 {

namespace {

bool is_plain_name(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), is_call_name);
}

std::string value_text(const OrderedJson& value) {
  if (value.is_null()) return "None";
  if (value.is_boolean()) return value == true ? "True" : "False";
  if (!value.is_structured()) return json_text_with_digits(value);
  std::string text;
  for (const auto& [key, element] : value.items()) {
    if (!text.empty()) text += ", ";
    if (value.is_object()) text += json_text(OrderedJson(key)) + ": ";
    text += value_text(element);
  }
  return value.is_object() ? '{' + text + '}' : '[' + text + ']';
}

// Names that Python's syntax does not have are keys of an object, or make the call one.
std::string call_text(const std::string& name, const OrderedJson& arguments) {
  if (!is_plain_name(name)) return value_text(OrderedJson{{"name", name}, {"arguments", arguments}});
  std::string text;
  for (const auto& [key, value] : arguments.items()) {
    if (!is_plain_name(key)) return name + "(**" + value_text(arguments) + ')';
    (text += text.empty() ? "" : ", ") += key + '=' + value_text(value);
  }
  return name + '(' + text + ')';
}

}  // namespace

std::string tool_calls_text(const OrderedJson& calls) {
  std::string text;
  for (const OrderedJson& call : calls) {
    const OrderedJson& function = call["function"];
    text += text.empty() ? "" : ", ";
    text += call_text(function["name"].get_ref<const std::string&>(), function["arguments"]);
  }
  return std::string(kBeginCalls) + '[' + text + ']' + std::string(kEndCalls);
}

}  // namespace lfm2
