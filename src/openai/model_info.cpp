#include "openai/model_info.h"

#include <fmt/format.h>

#include <ctime>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/json/large_json.h"
#include "openai/other_fields.h"
#include "openai/request_fields.h"
#include "text/text_model.h"

namespace lfm2 {

namespace {

LargeJson parse_object(std::string_view body) {
  LargeJson json = parse_large_json(body, "request");
  if (!json->is_object()) throw Error(ExitCode::kData, "request: expected an object");
  return json;
}

}  // namespace

ModelInfo::ModelInfo(ModelFacts facts) : facts_(std::move(facts)), started_(static_cast<int64_t>(std::time(nullptr))) {}

OrderedJson ModelInfo::entry() const {
  OrderedJson entry{{"id", facts_.name},        {"object", "model"},   {"created", started_},
                    {"owned_by", "lfm2_stage"}, {"root", facts_.name}, {"max_model_len", facts_.max_length}};
  if (facts_.lines.text == nullptr) entry["tokenizer"] = nullptr;  // the page asks for it
  return entry;
}

std::optional<std::string> ModelInfo::model(std::string_view name) const {
  return name == facts_.name ? std::optional(json_text(entry())) : std::nullopt;
}

std::string ModelInfo::models() const {
  return json_text(OrderedJson{{"object", "list"}, {"data", OrderedJson::array({entry()})}});
}

std::string ModelInfo::version() const { return json_text(OrderedJson{{"version", facts_.version}}); }

// The texts of special tokens by their names in tokenizer_config.json, the end-of-text tokens, and the chat template.
std::optional<std::string> ModelInfo::tokenizer_info() const {
  if (facts_.lines.text == nullptr) return {};
  const Tokenizer& tokenizer = facts_.lines.text->tokenizer();
  OrderedJson info{{"eos_token", nullptr}};
  if (const std::vector<int32_t>& ends = facts_.eos_tokens; !ends.empty())
    info["eos_token"] = std::string(tokenizer.bytes(ends.front()));
  for (const auto& [name, text] : facts_.lines.text->special_tokens()) info[name] = text;
  if (const std::string& source = facts_.lines.text->template_source(); !source.empty()) info["chat_template"] = source;
  return json_text(info);
}

void ModelInfo::check_room(size_t answer_bytes) const {
  if (answer_bytes > facts_.max_answer_bytes)
    throw Error(ExitCode::kData, fmt::format("request: the answer would have more than {} MiB: ask for less at a time",
                                             facts_.max_answer_bytes >> 20));
}

std::string ModelInfo::tokenize(std::string_view body) const {
  const LargeJson parsed = parse_object(body);
  const OrderedJson& json = *parsed;
  LineContext lines = facts_.lines;
  lines.now = std::time(nullptr);
  const std::string where = "request";
  FieldReader fields(json, lines, where);
  const bool chat = fields.find("messages") != nullptr;
  chat ? refuse_unsupported(json, {"add_generation_prompt", "continue_final_message"}, where)
       : refuse_unsupported(json, {"add_special_tokens"}, where);
  std::vector<int32_t> ids;
  if (chat)
    ids = prompt_of_messages(fields).ids;
  else if (const std::string* text = fields.text(fields.find("content") != nullptr ? "content" : "prompt"))
    ids = encode(*text, adds_special_tokens(fields), lines, where);
  else
    throw Error(ExitCode::kData, "request: expected \"prompt\" or \"messages\"");
  // Written without a JSON value, which would take twenty times the memory of the ids.
  check_room(2 * ids.size());
  std::string answer = R"({"tokens":[)";
  append_values(answer, std::span<const int32_t>(ids));
  answer += fmt::format(R"(],"count":{},"max_model_len":{})", ids.size(), facts_.max_length);
  if (fields.flag("return_token_strs")) {
    answer += R"(,"token_strs":[)";
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i > 0) answer += ',';
      answer += json_text(OrderedJson(std::string(lines.text->tokenizer().bytes(ids[i]))));
      check_room(answer.size());
    }
    answer += ']';
  }
  answer += '}';
  check_room(answer.size());
  return answer;
}

std::string ModelInfo::detokenize(std::string_view body) const {
  const LargeJson parsed = parse_object(body);
  const OrderedJson& json = *parsed;
  if (!json.contains("tokens")) throw Error(ExitCode::kData, "request: expected \"tokens\"");
  const std::string where = "request";
  FieldReader fields(json, facts_.lines, where);
  const Tokenizer& tokenizer = text_model(facts_.lines, where).tokenizer();
  std::string text;
  for (const int32_t id : fields.ids("tokens")) {
    text += tokenizer.bytes(id);
    check_room(text.size());
  }
  std::string answer = json_text(OrderedJson{{"prompt", text}});
  check_room(answer.size());  // with what JSON escapes
  return answer;
}

}  // namespace lfm2
