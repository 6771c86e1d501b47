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

const std::string kResponsesBody = "request";
// Of larger bodies an answer repeats no texts, lists and objects, because a stream has them three times.
constexpr size_t kMaxRepeatedBytes = 128 << 10;

// Fields about stored responses and about work on them, unless their values change no answer.
void refuse_what_needs_a_state(FieldReader& fields) {
  const auto refuse_unless = [&](const char* key, const auto& fits, std::string_view expected) {
    if (const OrderedJson* value = fields.find(key); value != nullptr && !fits(*value))
      refuse_unsupported_field(kResponsesBody, key, *value, expected);
  };
  const auto never = [](const OrderedJson&) { return false; };
  constexpr std::string_view kNone = "no such field";
  refuse_unless("conversation", never, kNone);
  refuse_unless("previous_response_id", never, kNone);
  refuse_unless(
      "background", [](const OrderedJson& value) { return value == false; }, "false, or no such field");
  refuse_unless(
      "context_management", [](const OrderedJson& value) { return value == false || value == "" || value.empty(); },
      kNone);
  refuse_unless(
      "truncation", [](const OrderedJson& value) { return value == "disabled"; }, "disabled, or no such field");
}

// Other fields that the interface has for other servers. Those that chats have too are in the table of other_field().
void refuse_what_is_not_there(FieldReader& fields) {
  const auto refuse_unless = [&](const char* key, const auto& fits, std::string_view expected) {
    if (const OrderedJson* value = fields.find(key); value != nullptr && !fits(*value))
      refuse_field(kResponsesBody, key, *value, expected);
  };
  refuse_unless(
      "store", [](const OrderedJson& value) { return value == false; }, "false: no response is stored");
  refuse_unless(
      "prompt", [](const OrderedJson&) { return false; }, "no such field: no prompt is stored");
  refuse_unless(
      "n", [](const OrderedJson& value) { return value == 1; }, "1: a response has one choice");
  const OrderedJson* include = fields.find("include");
  if (include != nullptr && !include->is_array()) refuse_field(kResponsesBody, "include", *include, "a list of texts");
  if (include == nullptr) return;
  for (const OrderedJson& one : *include)
    if (one == "message.output_text.logprobs")
      refuse_field(kResponsesBody, "include", one, "no log-probabilities: /v1/chat/completions has them");
}

OrderedJson type_of(const OrderedJson& tool) {
  return tool.is_object() ? tool.value("type", OrderedJson()) : OrderedJson();
}

void expect_name(const OrderedJson& tool, const std::string& place) {
  if (const OrderedJson name = tool.value("name", OrderedJson()); !name.is_string())
    refuse_field(kResponsesBody, place + ".name", name, "text");
}

// A function as chats write it. `space`: its namespace, if it has one.
OrderedJson nested_function(OrderedJson&& tool, const std::string& place, const std::optional<std::string>& space) {
  if (const OrderedJson type = type_of(tool); type != "function")
    refuse_field(kResponsesBody, place + ".type", type, R"("function": the server itself has no tools)");
  expect_name(tool, place);
  tool.erase("type");
  if (space) tool["name"] = *space + '.' + tool["name"].get<std::string>();
  return {{"type", "function"}, {"function", std::move(tool)}};
}

// The functions of a list, those of namespaces among them.
LargeJson functions_of(OrderedJson& tools, FunctionNames& names) {
  LargeJson functions(new OrderedJson(OrderedJson::array()));
  const auto add = [&](OrderedJson& tool, const std::string& place, const std::optional<std::string>& space) {
    functions->push_back(nested_function(std::move(tool), place, space));
    const OrderedJson& full = functions->back()["function"]["name"];
    const auto name = full.get<std::string>();
    if (!names.try_emplace(name, FunctionName{space, name.substr(space ? space->size() + 1 : 0)}).second)
      refuse_field(kResponsesBody, place + ".name", full, "a name that no other function has");
  };
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string place = fmt::format("tools[{}]", i);
    if (type_of(tools[i]) != "namespace") {
      add(tools[i], place, {});
      continue;
    }
    expect_name(tools[i], place);
    const auto space = tools[i]["name"].get<std::string>();
    OrderedJson& own = tools[i]["tools"];
    if (!own.is_array()) refuse_field(kResponsesBody, place + ".tools", own, "a list of functions");
    for (size_t j = 0; j < own.size(); ++j) add(own[j], fmt::format("{}.tools[{}]", place, j), space);
  }
  return functions;
}

// The function that the answer must call.
OrderedJson choice_of(OrderedJson&& choice) {
  const OrderedJson space = choice.value("namespace", OrderedJson());
  if (!space.is_null() && !space.is_string()) refuse_field(kResponsesBody, "tool_choice.namespace", space, "text");
  return nested_function(std::move(choice), "tool_choice",
                         space.is_null() ? std::nullopt : std::optional(space.get<std::string>()));
}

// "text.format" as the "response_format" of chats; null where there is none.
OrderedJson response_format_of(FieldReader& fields) {
  const OrderedJson* text = fields.find("text");
  if (text == nullptr) return nullptr;
  if (!text->is_object()) refuse_field(kResponsesBody, "text", *text, "an object");
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
  const auto if_small = [&](const char* key, OrderedJson otherwise) {
    return small ? field(key, std::move(otherwise)) : otherwise;
  };
  return {{"instructions", if_small("instructions", nullptr)},
          {"max_output_tokens", field("max_output_tokens", nullptr)},
          {"metadata", if_small("metadata", OrderedJson::object())},
          {"parallel_tool_calls", field("parallel_tool_calls", true)},
          {"reasoning", if_small("reasoning", nullptr)},
          {"text", if_small("text", {{"format", {{"type", "text"}}}})},
          {"tool_choice", if_small("tool_choice", "auto")},
          {"tools", if_small("tools", OrderedJson::array())}};
}

// The number that a client wrote, not the float nearest to it.
double as_written(float value) { return std::stod(fmt::format("{}", value)); }

void rewrite_as_chat(OrderedJson& body, FieldReader& fields, FunctionNames& functions) {
  OrderedJson& input = body["input"];  // may be added, which moves the others
  const auto limit = fields.integer("max_output_tokens", 1, kMaxAsked);
  const std::string* instructions = fields.text("instructions");
  OrderedJson format = response_format_of(fields);
  const LargeJson messages =
      messages_of_input(input, instructions != nullptr ? *instructions : std::string(), kResponsesBody);
  empty_json(input);
  if (const auto tools = body.find("tools"); tools != body.end() && tools->is_array())
    *tools = std::move(*functions_of(*tools, functions));
  if (const auto choice = body.find("tool_choice"); choice != body.end() && choice->is_object())
    *choice = choice_of(std::move(*choice));
  for (const char* key : {"input", "instructions", "text", "text.format", "logprobs", "top_logprobs"}) body.erase(key);
  body["messages"] = std::move(*messages);
  if (!format.is_null()) body["text.format"] = std::move(format);
  if (limit) body["max_completion_tokens"] = *limit;
}

}  // namespace

OpenAiRequest parse_responses_request(std::string_view body, const LineContext& context,
                                      const RequestDefaults& defaults, const RequestLimits& limits,
                                      std::optional<uint64_t> fresh_seed) {
  const LargeJson parsed = parse_request_body(body);
  FieldReader fields(*parsed, context, kResponsesBody);
  refuse_what_needs_a_state(fields);
  refuse_what_is_not_there(fields);
  auto response = std::make_shared<ResponsesShape>();
  response->repeated = repeated_fields(*parsed, body.size() <= kMaxRepeatedBytes);
  rewrite_as_chat(*parsed, fields, response->functions);
  OpenAiRequest request = read_openai_request(*parsed, true, context, defaults, limits, fresh_seed, true);
  const SamplingRule& rule = request.requests.front().rule;
  response->repeated.update({{"temperature", as_written(rule.temperature)}, {"top_p", as_written(rule.top_p)}});
  request.response = std::move(response);
  return request;
}

}  // namespace lfm2
