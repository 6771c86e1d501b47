// Each field gives the text form of its constraint; then the grammar is compiled, so that a fault is found before the
// request waits.
#include "openai/constraint_fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json/json.h"
#include "grammar/constraint_cache.h"
#include "grammar/expression/refusal.h"
#include "openai/answer/thought_reader.h"
#include "text/text_model.h"

namespace lfm2 {

namespace {

// The constraint that a field asks for; null where it asks for none.
struct Asked {
  std::string field;
  OrderedJson constraint;
};

bool is_texts(const OrderedJson& value) {
  return value.is_array() && !value.empty() &&
         std::all_of(value.begin(), value.end(), [](const OrderedJson& one) { return one.is_string(); });
}

OrderedJson schema_constraint(const OrderedJson& schema, const OrderedJson& options = OrderedJson::object()) {
  OrderedJson constraint{{"json_schema", schema}};
  constraint.update(options);
  return constraint;
}

const OrderedJson kAnyObject{{"type", "object"}};

// A schema may be given as its text, too.
OrderedJson schema_of(const OrderedJson& value, const std::string& key, const std::string& where) {
  if (value.is_object() || value.is_boolean()) return value;
  if (!value.is_string()) refuse_field(where, key, value, "a JSON schema, or the text of one");
  return parse_ordered_json(value.get_ref<const std::string&>(), fmt::format("{}: \"{}\"", where, key),
                            LargeIntegers::kDigits);
}

OrderedJson of_response_format(const OrderedJson& format, const std::string& key, const std::string& where) {
  constexpr const char* kTypes = R"(an object with "type" text, json_object or json_schema)";
  const auto type = format.is_object() ? format.find("type") : format.end();
  if (!format.is_object() || type == format.end() || !type->is_string()) refuse_field(where, key, format, kTypes);
  if (*type == "text") return {};
  if (*type == "json_object") {
    const auto schema = format.find("schema");
    return schema_constraint(schema == format.end() || schema->is_null() ? kAnyObject
                                                                         : schema_of(*schema, "schema", where));
  }
  if (*type != "json_schema") refuse_field(where, key, format, kTypes);
  const auto wrapper = format.find("json_schema");
  const auto schema = wrapper != format.end() && wrapper->is_object() ? wrapper->find("schema") : wrapper;
  if (wrapper == format.end() || !wrapper->is_object() || schema == wrapper->end())
    refuse_field(where, key, format, R"("json_schema": {"name": text, "schema": object})");
  return schema_constraint(schema_of(*schema, "json_schema", where));
}

// `options`: keys beside "json_schema" in a constraint's text form.
OrderedJson of_kind(const std::string& kind, const OrderedJson& value, const OrderedJson& options,
                    const std::string& where) {
  if (kind == "json") return schema_constraint(schema_of(value, kind, where), options);
  if (kind == "json_object") {
    if (!value.is_boolean()) refuse_field(where, kind, value, "true or false");
    return value == true ? schema_constraint(kAnyObject, options) : OrderedJson();
  }
  if (kind == "regex" || kind == "grammar") {
    if (!value.is_string()) refuse_field(where, kind, value, kind == "regex" ? "an expression" : "a grammar in GBNF");
    return {{kind, value}};
  }
  if (!is_texts(value)) refuse_field(where, kind, value, "a list of one or more texts");
  return {{"choice", value}};
}

OrderedJson of_structured_outputs(const OrderedJson& outputs, const std::string& where) {
  constexpr const char* kKey = "structured_outputs";
  constexpr const char* kKinds[] = {"json", "json_object", "regex", "choice", "grammar"};
  if (!outputs.is_object()) refuse_field(where, kKey, outputs, "an object");
  constexpr const char *kNoWhitespace = "disable_any_whitespace", *kClosed = "disable_additional_properties";
  const auto is_set = [&](const char* key) {
    const auto found = outputs.find(key);
    if (found == outputs.end() || found->is_null()) return false;
    if (!found->is_boolean()) refuse_field(where, key, *found, "true or false");
    return *found == true;
  };
  OrderedJson options = OrderedJson::object();
  if (is_set(kNoWhitespace)) options["any_whitespace"] = false;
  if (is_set(kClosed)) options["closed_objects"] = true;
  OrderedJson constraint;
  for (const auto& [kind, value] : outputs.items()) {
    if (value.is_null() || value == false || kind == kNoWhitespace || kind == kClosed) continue;
    if (std::find(std::begin(kKinds), std::end(kKinds), kind) == std::end(kKinds))
      throw Error(ExitCode::kData, fmt::format("{}: \"{}\": \"{}\" is not supported: expected one of {}", where, kKey,
                                               kind, fmt::join(kKinds, ", ")));
    if (!constraint.is_null()) refuse_field(where, kKey, outputs, fmt::format("one of {}", fmt::join(kKinds, ", ")));
    constraint = of_kind(kind, value, options, where);
  }
  return constraint;
}

// "tool_choice": the answer is a list of calls of any function, or one call of the named function, as OpenAI and vLLM
// answer; clients such as instructor accept no second one.
OrderedJson of_tool_choice(const OrderedJson& choice, FieldReader& fields) {
  constexpr const char* kKey = "tool_choice";
  if (choice == "auto" || choice == "none") return {};
  const auto function = choice.is_object() ? choice.find("function") : choice.end();
  const bool named = choice.is_object() && choice.value("type", OrderedJson()) == "function" &&
                     function != choice.end() && function->is_object() && function->contains("name") &&
                     (*function)["name"].is_string();
  if (choice != "required" && !named)
    refuse_field(fields.where(), kKey, choice,
                 R"("auto", "none", "required" or {"type": "function", "function": {"name": text}})");
  const OrderedJson* tools = fields.find("tools");
  if (tools == nullptr || tools->empty())
    refuse_field(fields.where(), kKey, choice, R"("auto" or "none" without "tools")");
  OrderedJson constraint{{"calls", *tools}};
  if (named) constraint["only"] = (*function)["name"];
  const OrderedJson* parallel = fields.find("parallel_tool_calls");
  if (named || (parallel != nullptr && *parallel == false)) constraint["parallel"] = false;
  return constraint;
}

std::vector<Asked> asked_by(FieldReader& fields, LineForm form, bool responses) {
  const std::string& where = fields.where();
  std::vector<Asked> asked;
  const auto add = [&](const std::string& key, const auto& constraint_of) {
    const OrderedJson* value = fields.find(key);
    if (value == nullptr) return;
    if (OrderedJson constraint = constraint_of(*value); !constraint.is_null())
      asked.push_back({key, std::move(constraint)});
  };
  const auto add_format = [&](const char* key) {
    add(key, [&](const OrderedJson& value) { return of_response_format(value, key, where); });
  };
  add_format("response_format");
  if (responses) add_format("text.format");
  add("structured_outputs", [&](const OrderedJson& value) { return of_structured_outputs(value, where); });
  for (const char* kind : {"json", "regex", "choice", "grammar"})
    add(fmt::format("guided_{}", kind),
        [&](const OrderedJson& value) { return of_kind(kind, value, OrderedJson::object(), where); });
  if (form == LineForm::kChatCompletion)
    add("tool_choice", [&](const OrderedJson& value) { return of_tool_choice(value, fields); });
  return asked;
}

}  // namespace

std::string read_constraint(FieldReader& fields, LineForm form, bool in_thought, bool responses) {
  std::vector<Asked> asked = asked_by(fields, form, responses);
  if (asked.empty()) return {};
  const std::string& where = fields.where();
  if (asked.size() > 1)
    throw Error(ExitCode::kData, fmt::format("{}: \"{}\" and \"{}\" both constrain the answer: expected one of them",
                                             where, asked[0].field, asked[1].field));
  const TextModel& model = text_model(fields.context(), where);
  const bool conversation = form == LineForm::kChatCompletion || form == LineForm::kMessages;
  if (in_thought)
    asked.front().constraint["thought"] = "open";
  else if (conversation && template_knows_thoughts(model.template_source()))
    asked.front().constraint["thought"] = "may";
  std::string text = json_text_with_digits(asked.front().constraint);
  expect(fields.context().constraints != nullptr, "read_constraint: a tokenizer without a cache of constraints");
  try {
    fields.context().constraints->check(text);
  } catch (const grammar::Refusal& refusal) {
    throw Error(ExitCode::kData, fmt::format("{}: \"{}\": {}", where, asked.front().field, refusal.what()));
  }
  return text;
}

}  // namespace lfm2
