#include "openai/responses/input_messages.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "openai/request_fields.h"

namespace lfm2 {

namespace {

// Null where there is none.
const OrderedJson& field_of(const OrderedJson& item, const char* key) {
  static const OrderedJson kNone;
  const auto found = item.is_object() ? item.find(key) : item.end();
  return !item.is_object() || found == item.end() ? kNone : *found;
}

class Conversation {
 public:
  Conversation(OrderedJson& messages, const std::string& where) : messages_(messages), where_(where) {}

  void add(OrderedJson& item, const std::string& place) {
    if (!item.is_object()) refuse_field(where_, place, item, "an object");
    const OrderedJson& type = field_of(item, "type");
    if (type == "message" || (type.is_null() && item.contains("role"))) return add_message(item, place);
    if (type == "function_call") return add_call(item, place);
    if (type == "function_call_output") return add_output(item, place);
    if (type == "reasoning") return add_thought(item, place);
    refuse_field(where_, place + ".type", type, R"("message", "function_call", "function_call_output" or "reasoning")");
  }

 private:
  void add_message(OrderedJson& item, const std::string& place) {
    const OrderedJson& role = field_of(item, "role");
    if (role != "user" && role != "assistant" && role != "system" && role != "developer")
      refuse_field(where_, place + ".role", role, R"("user", "assistant", "system" or "developer")");
    check_content(field_of(item, "content"), place + ".content");
    if (role == "assistant" && only_thinks())
      messages_.back()["content"] = std::move(item["content"]);
    else
      messages_.push_back(
          {{"role", role == "developer" ? OrderedJson("system") : role}, {"content", std::move(item["content"])}});
  }

  void add_call(OrderedJson& item, const std::string& place) {
    std::string name = text_of(item, "name", place);
    if (!field_of(item, "namespace").is_null())
      name.insert(0, text_of(item, "namespace", place).get_ref<const std::string&>() + '.');
    OrderedJson& message = assistant();
    if (!message.contains("tool_calls")) message["tool_calls"] = OrderedJson::array();
    message["tool_calls"].push_back(
        {{"id", text_of(item, "call_id", place)},
         {"type", "function"},
         {"function", {{"name", std::move(name)}, {"arguments", text_of(item, "arguments", place)}}}});
  }

  void add_output(OrderedJson& item, const std::string& place) {
    check_content(field_of(item, "output"), place + ".output");
    messages_.push_back(
        {{"role", "tool"}, {"tool_call_id", text_of(item, "call_id", place)}, {"content", std::move(item["output"])}});
  }

  void add_thought(const OrderedJson& item, const std::string& place) {
    const OrderedJson& content = field_of(item, "content");
    if (!content.is_null() && !content.is_array())
      refuse_field(where_, place + ".content", content, "a list of parts with their text");
    std::string thought;
    for (size_t i = 0; i < content.size(); ++i) {
      const OrderedJson& text = field_of(content[i], "text");
      if (!text.is_string()) refuse_field(where_, fmt::format("{}.content[{}].text", place, i), text, "text");
      thought += text.get_ref<const std::string&>();
    }
    if (!thought.empty())
      messages_.push_back({{"role", "assistant"}, {"content", ""}, {"reasoning_content", std::move(thought)}});
  }

  // The last message, if it has nothing but a thought.
  bool only_thinks() const {
    return !messages_.empty() && messages_.back().contains("reasoning_content") && messages_.back()["content"] == "" &&
           !messages_.back().contains("tool_calls");
  }

  OrderedJson& assistant() {
    if (messages_.empty() || messages_.back()["role"] != "assistant")
      messages_.push_back({{"role", "assistant"}, {"content", ""}});
    return messages_.back();
  }

  OrderedJson& text_of(OrderedJson& item, const char* key, const std::string& place) const {
    if (const OrderedJson& text = field_of(item, key); !text.is_string())
      refuse_field(where_, fmt::format("{}.{}", place, key), text, "text");
    return item[key];
  }

  void check_content(const OrderedJson& content, const std::string& place) const {
    if (content.is_string()) return;
    if (!content.is_array()) refuse_field(where_, place, content, "text or a list of parts");
    for (size_t i = 0; i < content.size(); ++i) {
      const OrderedJson& type = field_of(content[i], "type");
      const bool refusal = type == "refusal";
      if (!refusal && type != "input_text" && type != "output_text" && type != "text")
        refuse_field(where_, fmt::format("{}[{}].type", place, i), type, R"("input_text", "output_text" or "refusal")");
      const char* const key = refusal ? "refusal" : "text";
      if (const OrderedJson& text = field_of(content[i], key); !text.is_string())
        refuse_field(where_, fmt::format("{}[{}].{}", place, i, key), text, "text");
    }
  }

  OrderedJson& messages_;
  const std::string& where_;
};

}  // namespace

LargeJson messages_of_input(OrderedJson& input, std::string instructions, const std::string& where) {
  LargeJson messages(new OrderedJson(OrderedJson::array()));
  if (!instructions.empty()) messages->push_back({{"role", "system"}, {"content", std::move(instructions)}});
  if (input.is_string()) {
    messages->push_back({{"role", "user"}, {"content", std::move(input)}});
    return messages;
  }
  if (!input.is_array() || input.empty()) refuse_field(where, "input", input, "text or a list of items");
  Conversation conversation(*messages, where);
  for (size_t i = 0; i < input.size(); ++i) conversation.add(input[i], fmt::format("input[{}]", i));
  return messages;
}

}  // namespace lfm2
