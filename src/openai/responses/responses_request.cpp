#include "openai/responses/responses_request.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>

#include "base/json/large_json.h"
#include "openai/other_fields.h"
#include "openai/request_fields.h"
#include "openai/responses/input_messages.h"

namespace lfm2 {

namespace {

const std::string kBody = "request";
// Of larger bodies an answer repeats neither instructions nor tools, because a stream has them three times.
constexpr size_t kMaxRepeatedBytes = 128 << 10;

// Fields that the interface has for other servers. Those that chats have too are in the table of other_field().
void refuse_what_is_not_there(FieldReader& fields) {
  const auto refuse_unless = [&](const char* key, const auto& fits, std::string_view expected) {
    if (const OrderedJson* value = fields.find(key); value != nullptr && !fits(*value))
      refuse_field(kBody, key, *value, expected);
  };
  refuse_unless(
      "store", [](const OrderedJson& value) { return value == false; }, "false: no response is stored");
  refuse_unless(
      "prompt", [](const OrderedJson&) { return false; }, "no such field: no prompt is stored");
  refuse_unless(
      "n", [](const OrderedJson& value) { return value == 1; }, "1: a response has one choice");
  const OrderedJson* include = fields.find("include");
  if (include != nullptr && !include->is_array()) refuse_field(kBody, "include", *include, "a list of texts");
  if (include == nullptr) return;
  for (const OrderedJson& one : *include)
    if (one == "message.output_text.logprobs")
      refuse_field(kBody, "include", one, "no log-probabilities: /v1/chat/completions has them");
}

OrderedJson type_of(const OrderedJson& tool) {
  return tool.is_object() ? tool.value("type", OrderedJson()) : OrderedJson();
}

void expect_name(const OrderedJson& tool, const std::string& place) {
  if (const OrderedJson name = tool.value("name", OrderedJson()); !name.is_string())
    refuse_field(kBody, place + ".name", name, "text");
}

// A function as chats write it. `prefix`: its namespace and a dot, if it has one.
OrderedJson nested_function(OrderedJson&& tool, const std::string& place, const std::string& prefix = {}) {
  if (const OrderedJson type = type_of(tool); type != "function")
    refuse_field(kBody, place + ".type", type, R"("function": the server itself has no tools)");
  expect_name(tool, place);
  tool.erase("type");
  tool["name"] = prefix + tool["name"].get<std::string>();
  return {{"type", "function"}, {"function", std::move(tool)}};
}

// The functions of a list, those of namespaces among them.
LargeJson functions_of(OrderedJson& tools, std::vector<std::string>& namespaces) {
  LargeJson functions(new OrderedJson(OrderedJson::array()));
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string place = fmt::format("tools[{}]", i);
    if (type_of(tools[i]) != "namespace") {
      functions->push_back(nested_function(std::move(tools[i]), place));
      continue;
    }
    expect_name(tools[i], place);
    namespaces.push_back(tools[i]["name"]);
    OrderedJson& own = tools[i]["tools"];
    if (!own.is_array()) refuse_field(kBody, place + ".tools", own, "a list of functions");
    for (size_t j = 0; j < own.size(); ++j)
      functions->push_back(
          nested_function(std::move(own[j]), fmt::format("{}.tools[{}]", place, j), namespaces.back() + '.'));
  }
  return functions;
}

// "text.format" as the "response_format" of chats; null where there is none.
OrderedJson response_format_of(FieldReader& fields) {
  const OrderedJson* text = fields.find("text");
  if (text == nullptr) return nullptr;
  if (!text->is_object()) refuse_field(kBody, "text", *text, "an object");
  OrderedJson format = text->value("format", OrderedJson());
  if (!format.is_object() || format.value("type", OrderedJson()) != "json_schema") return format;
  format.erase("type");
  return {{"type", "json_schema"}, {"json_schema", std::move(format)}};
}

// What an answer repeats of the body.
OrderedJson repeated_fields(const OrderedJson& body, bool small) {
  const auto field = [&](const char* key, OrderedJson otherwise) {
    const auto found = body.find(key);
    return found == body.end() || found->is_null() ? otherwise : *found;
  };
  const OrderedJson free{{"format", {{"type", "text"}}}}, none = OrderedJson::array();
  return {{"instructions", small ? field("instructions", nullptr) : OrderedJson()},
          {"max_output_tokens", field("max_output_tokens", nullptr)},
          {"metadata", field("metadata", OrderedJson::object())},
          {"parallel_tool_calls", field("parallel_tool_calls", true)},
          {"reasoning", field("reasoning", nullptr)},
          {"text", small ? field("text", free) : free},
          {"tool_choice", field("tool_choice", "auto")},
          {"tools", small ? field("tools", none) : none}};
}

// The number that a client wrote, not the float nearest to it.
double as_written(float value) { return std::stod(fmt::format("{}", value)); }

void rewrite_as_chat(OrderedJson& body, FieldReader& fields, std::vector<std::string>& namespaces) {
  OrderedJson& input = body["input"];  // may be added, which moves the others
  const auto limit = fields.integer("max_output_tokens", 1, kMaxAsked);
  const std::string* instructions = fields.text("instructions");
  OrderedJson format = response_format_of(fields);
  const LargeJson messages = messages_of_input(input, instructions != nullptr ? *instructions : std::string(), kBody);
  empty_json(input);
  if (const auto tools = body.find("tools"); tools != body.end() && tools->is_array())
    *tools = std::move(*functions_of(*tools, namespaces));
  if (const auto choice = body.find("tool_choice"); choice != body.end() && choice->is_object())
    *choice = nested_function(std::move(*choice), "tool_choice");
  for (const char* key : {"input", "instructions", "text", "logprobs", "top_logprobs"}) body.erase(key);
  body["messages"] = std::move(*messages);
  if (!format.is_null()) body["text.format"] = std::move(format);
  if (limit) body["max_completion_tokens"] = *limit;
}

}  // namespace

OpenAiRequest parse_responses_request(std::string_view body, const LineContext& context,
                                      const RequestDefaults& defaults, const RequestLimits& limits,
                                      std::optional<uint64_t> fresh_seed) {
  const LargeJson parsed = parse_request_body(body);
  FieldReader fields(*parsed, context, kBody);
  refuse_what_is_not_there(fields);
  auto response = std::make_shared<ResponsesShape>();
  response->repeated = repeated_fields(*parsed, body.size() <= kMaxRepeatedBytes);
  rewrite_as_chat(*parsed, fields, response->namespaces);
  OpenAiRequest request = read_openai_request(*parsed, true, context, defaults, limits, fresh_seed, "input");
  const SamplingRule& rule = request.requests.front().rule;
  response->repeated.update({{"temperature", as_written(rule.temperature)}, {"top_p", as_written(rule.top_p)}});
  request.response = std::move(response);
  return request;
}

}  // namespace lfm2
