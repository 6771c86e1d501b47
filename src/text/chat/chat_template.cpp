#include "text/chat/chat_template.h"

#include "base/error.h"
#include "base/utf8.h"
#include "text/jinja/builtins/builtins.h"
#include "text/jinja/evaluate.h"

namespace lfm2 {

namespace {

using jinja::Heap;
using jinja::Value;

// Texts are not copied: the JSON outlives the rendering.
Value text_value(const Heap& heap, const std::string& text) {
  if (!is_utf8(text)) heap.fail("the conversation has text that is not UTF-8");
  return Value::text(text);
}

// See LargeIntegers.
Value digits_value(const OrderedJson::binary_t& digits) {
  return Value::digits({reinterpret_cast<const char*>(digits.data()), digits.size()});
}

Value value_of(Heap& heap, const OrderedJson& json, int depth = 1) {
  heap.charge(1);
  if (depth > heap.limits().value_depth) heap.check_depth(depth);
  switch (json.type()) {
    case OrderedJson::value_t::null:
    case OrderedJson::value_t::discarded:
      return Value::none();
    case OrderedJson::value_t::binary:
      return digits_value(json.get_binary());
    case OrderedJson::value_t::boolean:
      return Value::boolean(json.get<bool>());
    case OrderedJson::value_t::number_integer:
      return Value::integer(json.get<int64_t>());
    case OrderedJson::value_t::number_unsigned:
      return Value::integer(json.get<uint64_t>());
    case OrderedJson::value_t::number_float:
      return Value::real(json.get<double>());
    case OrderedJson::value_t::string:
      return text_value(heap, json.get_ref<const std::string&>());
    case OrderedJson::value_t::array: {
      std::vector<Value> values;
      for (const OrderedJson& item : json) values.push_back(value_of(heap, item, depth + 1));
      return heap.list(values);
    }
    case OrderedJson::value_t::object: {
      jinja::DictBuilder builder(heap);
      for (const auto& [key, item] : json.get_ref<const OrderedJson::object_t&>())
        builder.set(text_value(heap, key), value_of(heap, item, depth + 1));
      return builder.finish();
    }
  }
  return {};
}

// The value of a name that the template does not define; missing if nothing else defines it.
Value variable(Heap& heap, const ChatInput& input, std::string_view name) {
  const auto given = input.variables.find(std::string(name));
  if (given != input.variables.end()) return value_of(heap, *given);
  if (name == "messages") return value_of(heap, input.messages);
  if (name == "tools") return value_of(heap, input.tools);
  if (name == "documents") return Value::none();
  if (name == "add_generation_prompt") return Value::boolean(input.add_generation_prompt);
  const auto token = input.special_tokens.find(name);
  if (token != input.special_tokens.end()) return text_value(heap, token->second);
  const auto function = jinja::find_function(name);
  return function ? Value::function(*function) : Value();
}

}  // namespace

ChatTemplate ChatTemplate::parse(std::string_view source, const std::string& what) {
  return ChatTemplate(jinja::parse_template(source, what));
}

std::string ChatTemplate::render(const ChatInput& input, const jinja::Limits& limits) const {
  if (!input.variables.is_object())
    throw Error(ExitCode::kData, fmt::format("{}: the template's variables are not a JSON object", tree_->source.what));
  Heap heap(limits, tree_->source.what);
  std::vector<Value> variables;
  for (const std::string_view name : tree_->variables) variables.push_back(variable(heap, input, name));
  return jinja::Evaluator(heap, std::move(variables), input.now).render(*tree_);
}

}  // namespace lfm2
