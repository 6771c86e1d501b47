#include "text/chat/chat_messages.h"

#include <fmt/format.h>

#include <cctype>
#include <string>
#include <utility>

#include "base/error.h"
#include "text/chat/tool_call_text.h"

namespace lfm2 {

namespace {

// The end of a content: a code point that stands for no character, which mark_end() refuses in messages, and a blank,
// which a template that trims contents removes.
constexpr std::string_view kMark = "\xef\xb7\x90 ", kMarkTrimmed = kMark.substr(0, 3);
constexpr const char* kThoughtFields[] = {"reasoning_content", "reasoning", "thinking"};

[[noreturn]] void refuse(const std::string& place, const OrderedJson* found, std::string_view expected) {
  throw Error(ExitCode::kData, fmt::format("\"{}\" is {}, expected {}", place,
                                           found == nullptr ? "missing" : json_excerpt(*found), expected));
}

const OrderedJson* field_of(const OrderedJson& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found == object.end() ? nullptr : &*found;
}

// Checks the fields that templates assume, so that the error names the field instead of a line of the template.
void check_message(const OrderedJson& message, const std::string& place) {
  if (!message.is_object()) refuse(place, &message, "an object");
  const OrderedJson *role = field_of(message, "role"), *content = field_of(message, "content");
  if (role == nullptr || !role->is_string()) refuse(place + ".role", role, "text");
  const bool fits = content == nullptr ? message.contains("tool_calls")
                                       : content->is_string() || content->is_null() || content->is_array();
  if (!fits) refuse(place + ".content", content, "text or a list of parts");
}

// The text of a part, or of a thought: then `thought` is true.
const std::string& text_of_part(const OrderedJson& part, size_t message, bool& thought) {
  thought = false;
  if (part.is_string()) return part.get_ref<const std::string&>();
  const OrderedJson* kind = field_of(part, "type");
  const OrderedJson* text = nullptr;
  if (kind != nullptr && (*kind == "text" || *kind == "input_text" || *kind == "output_text"))
    text = field_of(part, "text");
  else if (kind != nullptr && (*kind == "refusal" || *kind == "thinking"))
    text = field_of(part, kind->get_ref<const std::string&>().c_str());
  if (text == nullptr || !text->is_string())
    throw Error(ExitCode::kData,
                fmt::format("\"messages\": a part of message {} has \"type\" {}, expected \"text\" and a text",
                            message + 1, json_excerpt(kind != nullptr ? *kind : OrderedJson())));
  thought = *kind == "thinking";
  return text->get_ref<const std::string&>();
}

OrderedJson text_part(std::string text) { return {{"type", "text"}, {"text", std::move(text)}}; }

// Returns the thought among the parts.
std::string put_content(OrderedJson& message, size_t number, bool parts_stay) {
  const auto content = message.find("content");
  std::string thought, all;
  if (content == message.end()) {
    if (message.contains("tool_calls")) message["content"] = "";
  } else if (content->is_null()) {
    *content = "";
  } else if (content->is_array()) {
    LargeJson parts(new OrderedJson(OrderedJson::array()));
    for (const OrderedJson& part : *content) {
      bool is_thought = false;
      const std::string& text = text_of_part(part, number, is_thought);
      if (is_thought) {
        thought += text;
        continue;
      }
      (all += parts->empty() ? "" : "\n") += text;
      parts->push_back(part.is_object() && part["type"] == "text" ? part : text_part(text));
    }
    empty_json(*content);
    *content = parts_stay ? std::move(*parts) : OrderedJson(std::move(all));
  }
  return thought;
}

// Adds text to the content at its beginning or its end.
void add_to_content(OrderedJson& message, std::string text, bool at_end) {
  OrderedJson& content = message["content"];
  if (content.is_array())
    content.insert(at_end ? content.end() : content.begin(), text_part(std::move(text)));
  else
    content = at_end ? content.get_ref<const std::string&>() + text : text + content.get_ref<const std::string&>();
}

void put_thought(OrderedJson& message, std::string thought, const std::string& place, TemplateTraits::Thought where) {
  for (const char* name : kThoughtFields) {
    const OrderedJson* field = field_of(message, name);
    if (field == nullptr) continue;
    if (!field->is_string() && !field->is_null()) refuse(fmt::format("{}.{}", place, name), field, "text");
    if (field->is_string() && thought.empty()) thought = field->get<std::string>();
    message.erase(name);
  }
  if (thought.empty()) return;
  if (where == TemplateTraits::Thought::kInContent)
    add_to_content(message, std::string(kBeginThought) + thought + std::string(kEndThought), false);
  if (where != TemplateTraits::Thought::kFields) return;
  for (const char* name : kThoughtFields) message[name] = thought;
}

// The arguments of a call as an object.
void put_arguments(OrderedJson& function, const std::string& place) {
  OrderedJson& arguments = function["arguments"];  // null where there are none
  if (arguments.is_string()) {
    const std::string& text = arguments.get_ref<const std::string&>();
    LargeJson read(new OrderedJson());
    try {
      if (text.find_first_not_of(" \t\r\n") != std::string::npos)
        read = parse_large_json(text, place, LargeIntegers::kDigits, RepeatedKeys::kLastCounts);
    } catch (const Error&) {
      refuse(place, &arguments, "a JSON object");
    }
    if (!read->is_object() && !read->is_null()) refuse(place, &arguments, "a JSON object");
    arguments = std::move(*read);
  }
  if (arguments.is_null()) arguments = OrderedJson::object();
  if (!arguments.is_object()) refuse(place, &arguments, "a JSON object");
}

void put_calls(OrderedJson& message, const std::string& place, bool as_text) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end()) return;
  if (calls->is_null() || (calls->is_array() && calls->empty())) {
    message.erase(calls);
    return;
  }
  if (!calls->is_array()) return;
  for (size_t i = 0; i < calls->size(); ++i) {
    const auto function = (*calls)[i].is_object() ? (*calls)[i].find("function") : (*calls)[i].end();
    const bool is_call = function != (*calls)[i].end() && function->is_object();
    if (is_call) put_arguments(*function, fmt::format("{}.tool_calls[{}].function.arguments", place, i));
    const OrderedJson* name = is_call ? field_of(*function, "name") : nullptr;
    as_text = as_text && name != nullptr && name->is_string();
  }
  if (!as_text) return;
  add_to_content(message, tool_calls_text(*calls), true);
  message.erase("tool_calls");
}

bool has_mark(const OrderedJson& value) {
  const auto is_marked = [](const std::string& text) { return text.find(kMarkTrimmed) != std::string::npos; };
  if (value.is_string()) return is_marked(value.get_ref<const std::string&>());
  if (!value.is_structured()) return false;
  for (const auto& [key, one] : value.items())
    if (is_marked(key) || has_mark(one)) return true;
  return false;
}

// Whether the template says the name of a field: .name, 'name' or "name".
bool says_field(std::string_view source, std::string_view name) {
  for (size_t at = source.find(name); at != std::string_view::npos; at = source.find(name, at + 1)) {
    const char before = at > 0 ? source[at - 1] : ' ';
    const char after = at + name.size() < source.size() ? source[at + name.size()] : ' ';
    const bool ends = std::isalnum(static_cast<unsigned char>(after)) == 0 && after != '_';
    if ((before == '.' && ends) || ((before == '\'' || before == '"') && after == before)) return true;
  }
  return false;
}

}  // namespace

TemplateTraits template_traits(std::string_view source, bool has_call_tokens) {
  using Thought = TemplateTraits::Thought;
  const auto says = [&](std::string_view text) { return source.find(text) != std::string_view::npos; };
  TemplateTraits traits{.takes_parts = says("\"text\"") || says("'text'")};
  if (says(kEndThought)) traits.thought = Thought::kInContent;
  for (const char* name : kThoughtFields)
    if (says_field(source, name)) traits.thought = Thought::kFields;
  traits.calls_as_text = has_call_tokens && !says("tool_calls");
  return traits;
}

LargeJson template_messages(const OrderedJson& messages, const TemplateTraits& traits) {
  LargeJson copy(new OrderedJson(messages));
  OrderedJson& taken = *copy;
  for (size_t i = 0; i < taken.size(); ++i) {
    const std::string place = fmt::format("messages[{}]", i);
    check_message(taken[i], place);
    std::string thought = put_content(taken[i], i, traits.takes_parts);
    if (taken[i]["role"] != "assistant") continue;
    put_thought(taken[i], std::move(thought), place, traits.thought);
    put_calls(taken[i], place, traits.calls_as_text);
  }
  return copy;
}

void mark_end(const OrderedJson& messages, OrderedJson& taken) {
  const OrderedJson& last = messages.back();
  const std::string place = fmt::format("messages[{}]", messages.size() - 1);
  if (last["role"] != "assistant")
    refuse(place + ".role", &last["role"], R"("assistant" for a message that is continued)");
  if (const OrderedJson* calls = field_of(last, "tool_calls"); calls != nullptr && !calls->empty())
    refuse(place + ".tool_calls", calls, "none in a message that is continued");
  for (size_t i = 0; i < taken.size(); ++i)
    if (has_mark(taken[i]))
      refuse(fmt::format("messages[{}]", i), &taken[i], "no U+FDD0 in a conversation whose last message is continued");
  OrderedJson& content = taken.back()["content"];
  if (content.is_array() && content.empty()) content = "";
  OrderedJson& text = content.is_array() ? content.back()["text"] : content;
  text = text.get_ref<const std::string&>() + std::string(kMark);
}

std::string text_before_mark(std::string text) {
  const size_t mark = text.rfind(kMarkTrimmed);
  if (mark == std::string::npos)
    throw Error(ExitCode::kData,
                "the chat template leaves out the content of the last message, which is to be continued");
  const bool trims = text.compare(mark, kMark.size(), kMark) != 0;
  text.resize(mark);
  if (trims) text.resize(text.find_last_not_of(" \t\r\n\f\v") + 1);
  return text;
}

}  // namespace lfm2
