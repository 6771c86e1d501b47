// Messages about a field name its key, what was found and what was expected.
#include "openai/request_fields.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/json/error_json.h"
#include "base/json/json.h"
#include "openai/answer/thought_reader.h"
#include "openai/constraint_fields.h"
#include "openai/other_fields.h"
#include "text/text_model.h"

namespace lfm2 {

namespace {

constexpr size_t kMaxBiases = 1024, kMaxStops = 64, kMaxStopBytes = 1024;

}  // namespace

std::optional<int64_t> whole_number(const OrderedJson& value) {
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (number != std::trunc(number) || !(number >= -0x1p63 && number < 0x1p63)) return {};
    return static_cast<int64_t>(number);
  }
  if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX)) return {};
  return value.get<int64_t>();
}

void refuse_field(const std::string& where, std::string_view key, const OrderedJson& found, std::string_view expected) {
  throw Error(ExitCode::kData, fmt::format("{}: \"{}\" is {}, expected {}", where, key, json_excerpt(found), expected));
}

const TextModel& text_model(const LineContext& context, const std::string& where) {
  if (context.text == nullptr) throw Error(ExitCode::kData, fmt::format("{}: {}", where, context.text_error));
  return *context.text;
}

const OrderedJson* FieldReader::find(const std::string& key) {
  known_.push_back(key);
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<int64_t> FieldReader::integer(const std::string& key, int64_t least, int64_t most) {
  const OrderedJson* value = find(key);
  if (value == nullptr) return {};
  const std::optional<int64_t> whole = whole_number(*value);
  if (!whole || *whole < least || *whole > most)
    refuse_field(where_, key, *value, fmt::format("an integer from {} to {}", least, most));
  return whole;
}

std::optional<float> FieldReader::number(const std::string& key, float least, float most) {
  const OrderedJson* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_number() || !(value->get<double>() >= least && value->get<double>() <= most))
    refuse_field(where_, key, *value, fmt::format("a number from {} to {}", least, most));
  return value->get<float>();
}

bool FieldReader::flag(const std::string& key) {
  const OrderedJson* value = find(key);
  if (value != nullptr && !value->is_boolean()) refuse_field(where_, key, *value, "true or false");
  return value != nullptr && value->get<bool>();
}

const std::string* FieldReader::text(const std::string& key) {
  const OrderedJson* value = find(key);
  if (value == nullptr) return nullptr;
  if (!value->is_string()) refuse_field(where_, key, *value, "text");
  return value->get_ptr<const std::string*>();
}

std::vector<int32_t> FieldReader::ids(const std::string& key) {
  const OrderedJson* value = find(key);
  return value != nullptr ? ids(key, *value) : std::vector<int32_t>();
}

std::vector<int32_t> FieldReader::ids(const std::string& key, const OrderedJson& value) const {
  std::vector<int32_t> ids;
  if (!value.is_array()) refuse_field(where_, key, value, "a list of token ids");
  ids.reserve(value.size());
  for (const OrderedJson& id : value) {
    const std::optional<int64_t> token = whole_number(id);
    if (!token || *token < 0 || *token >= context_.vocab)
      refuse_field(where_, key, id, fmt::format("token ids from 0 to {}", context_.vocab - 1));
    ids.push_back(static_cast<int32_t>(*token));
  }
  return ids;
}

std::vector<std::string> FieldReader::stops(const std::string& key) {
  const OrderedJson* value = find(key);
  if (value == nullptr) return {};
  std::vector<std::string> stops;
  const OrderedJson list = value->is_string() ? OrderedJson::array({*value}) : *value;
  const auto is_stop = [](const OrderedJson& stop) {
    return stop.is_string() && !stop.get_ref<const std::string&>().empty() &&
           stop.get_ref<const std::string&>().size() <= kMaxStopBytes;
  };
  if (!list.is_array() || list.size() > kMaxStops || !std::all_of(list.begin(), list.end(), is_stop))
    refuse_field(where_, key, *value, fmt::format("text, or at most {} of 1 to {} bytes", kMaxStops, kMaxStopBytes));
  for (const OrderedJson& stop : list) stops.push_back(stop.get<std::string>());
  if (!stops.empty()) text_model(context_, where_);
  return stops;
}

std::vector<std::pair<int32_t, float>> FieldReader::biases(const std::string& key) {
  const OrderedJson* value = find(key);
  std::map<int32_t, float> biases;
  if (value == nullptr) return {};
  const auto refuse_it = [&](const OrderedJson& found) {
    refuse_field(
        where_, key, found,
        fmt::format("at most {} biases from -100 to 100 by token ids from 0 to {}", kMaxBiases, context_.vocab - 1));
  };
  if (!value->is_object() || value->size() > kMaxBiases) refuse_it(*value);
  for (const auto& [id, bias] : value->items()) {
    int32_t token = -1;
    const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), token);
    const bool is_id = error == std::errc() && end == id.data() + id.size() && token >= 0 && token < context_.vocab;
    if (!is_id || !bias.is_number() || !(std::abs(bias.get<double>()) <= 100)) refuse_it({{id, bias}});
    biases[token] = bias.get<float>();
  }
  return {biases.begin(), biases.end()};
}

void FieldReader::expect_all_known(Others others) const {
  for (const auto& [key, value] : object_.items()) {
    if (value.is_null() || std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    const OtherField kind = others == Others::kRefused ? OtherField::kUnknown : other_field(key, value);
    if (kind == OtherField::kUnsupported) refuse_unsupported_field(where_, key, value);
    if (kind == OtherField::kUnknown)
      throw Error(ExitCode::kData,
                  fmt::format("{}: unknown key \"{}\", expected one of {}", where_, key, fmt::join(known_, ", ")));
  }
}

namespace {

// Each only once, because each drawn token is compared with all of them.
std::vector<int32_t> stop_token_ids_of(FieldReader& fields) {
  constexpr size_t kMaxStopTokens = 256;
  std::vector<int32_t> ids = fields.ids("stop_token_ids");
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  if (ids.size() > kMaxStopTokens)
    throw Error(ExitCode::kData, fmt::format("{}: \"stop_token_ids\" has {} token ids, expected at most {}",
                                             fields.where(), ids.size(), kMaxStopTokens));
  return ids;
}

// "logprobs" and "top_logprobs": see read_rules().
std::optional<int32_t> log_probs_of(FieldReader& fields, bool chat) {
  constexpr int64_t kMaxLogProbs = 1024;
  if (!chat) return fields.integer("logprobs", 0, kMaxLogProbs);
  const bool wanted = fields.flag("logprobs");
  const int64_t count = fields.integer("top_logprobs", 0, kMaxLogProbs).value_or(0);
  if (count > 0 && !wanted)
    throw Error(ExitCode::kData, fmt::format("{}: \"top_logprobs\" without \"logprobs\": true", fields.where()));
  return wanted ? std::optional(static_cast<int32_t>(count)) : std::nullopt;
}

}  // namespace

void read_sampling(FieldReader& fields, SamplingOverrides& sampling, bool config) {
  for_each_sampling_field([&](const auto& field) {
    auto& said = sampling.*field.said;
    using T = typename std::remove_reference_t<decltype(said)>::value_type;
    const char* key = config ? field.config_key : field.key;
    if (key == nullptr) return;
    if constexpr (std::is_same_v<T, float>) {
      said = fields.number(key, field.least, field.most);
    } else {
      const int64_t least = config ? std::max<int64_t>(0, field.least) : field.least;
      if (const auto value = fields.integer(key, least, field.most)) said = static_cast<T>(*value);
    }
  });
  if (sampling.top_k == -1) sampling.top_k = 0;  // as vLLM says "all"
}

void read_rules(FieldReader& fields, SampleRules& rules, bool in_thought, bool responses) {
  constexpr int64_t kMaxChoices = 128;
  SamplingOverrides& sampling = rules.sampling;
  if (rules.form == LineForm::kCompletion) rules.echo = fields.flag("echo");  // with echo, max_tokens may be 0
  sampling.max_new = fields.integer("max_tokens", rules.echo ? 0 : 1, kMaxAsked);
  if (const auto newer = fields.integer("max_completion_tokens", 1, kMaxAsked)) sampling.max_new = newer;
  read_sampling(fields, sampling);
  rules.logit_bias = fields.biases("logit_bias");
  rules.choices = static_cast<int32_t>(fields.integer("n", 1, kMaxChoices).value_or(1));
  sampling.stop = fields.stops("stop");
  rules.stop_token_ids = stop_token_ids_of(fields);
  rules.ignore_eos = fields.flag("ignore_eos");
  const bool asks = fields.flag("draft");
  rules.draft = asks || fields.find("draft") == nullptr;
  if (asks && !fields.context().drafts) refuse_field(fields.where(), "draft", true, "false, or a start with --draft");
  rules.log_probs = log_probs_of(fields, rules.form == LineForm::kChatCompletion);
  rules.constraint = read_constraint(fields, rules.form, in_thought, responses);
}

std::vector<int32_t> encode(std::string_view text, bool special, const LineContext& context, const std::string& where) {
  std::vector<int32_t> ids;
  text_model(context, where).tokenizer().encode(text, special, ids, context.stop);
  return ids;
}

bool adds_special_tokens(FieldReader& fields) {
  return fields.find("add_special_tokens") == nullptr || fields.flag("add_special_tokens");
}

void check_length(const std::vector<int32_t>& ids, const LineContext& context, const std::string& where,
                  std::string_view field, int64_t max_positions, bool continues) {
  const auto count = static_cast<int64_t>(ids.size()), most = max_positions - (continues ? 1 : 0);
  if (count > most && !field.empty())
    throw Error(ExitCode::kData, fmt::format("{}: {}", where, context_length_text(max_positions, count, field)));
  if (count < 1 || count > most)
    throw Error(ExitCode::kData,
                fmt::format("{}: {} tokens, expected 1 to {}{}", where, count, continues ? "fewer than " : "",
                            max_length_text(max_positions, context.scores)));
}

int64_t read_truncation(FieldReader& fields, const SampleRules& rules, int64_t max_positions) {
  const char* const key = "truncate_prompt_tokens";
  const int64_t kept = fields.integer(key, -1, max_positions).value_or(INT64_MAX);
  if (kept == 0) refuse_field(fields.where(), key, 0, "a number of tokens, or -1 for the model's context");
  return kept > 0 ? kept : max_positions - std::min(rules.sampling.max_new.value_or(1), max_positions - 1);
}

void truncate_prompt(std::vector<int32_t>& ids, int64_t kept) {
  if (std::ssize(ids) > kept) ids.erase(ids.begin(), ids.end() - kept);
}

namespace {

bool flag_or(FieldReader& fields, const std::string& key, bool otherwise) {
  return fields.find(key) != nullptr ? fields.flag(key) : otherwise;
}

ChatEnd read_chat_end(FieldReader& fields) {
  const char* const key = "add_generation_prompt";
  if (!fields.flag("continue_final_message")) return flag_or(fields, key, true) ? ChatEnd::kPrompt : ChatEnd::kMessage;
  if (fields.flag(key)) refuse_field(fields.where(), key, true, R"(false with "continue_final_message": true)");
  return ChatEnd::kContinued;
}

// The text of a part that template_messages() accepts; "" for a part of "thinking", which ends its thought.
std::string text_of_part(const OrderedJson& part) {
  if (part.is_string()) return part.get<std::string>();
  return part.value(part["type"] == "refusal" ? "refusal" : "text", std::string());
}

// Whether an answer that continues the message begins inside a thought.
bool continues_thought(const OrderedJson& message) {
  const auto content = message.find("content");
  if (content == message.end()) return false;
  ThoughtReader reader(false);
  if (content->is_string()) reader.feed(content->get_ref<const std::string&>());
  if (content->is_array())
    for (const OrderedJson& part : *content) reader.feed(text_of_part(part) + '\n');  // as the parts are joined
  return reader.thinks();
}

}  // namespace

ChatPrompt prompt_of_messages(FieldReader& fields) {
  const OrderedJson none, no_variables = OrderedJson::object();
  const OrderedJson *messages = fields.find("messages"), *tools = fields.find("tools"),
                    *variables = fields.find("chat_template_kwargs");
  if (messages == nullptr || !messages->is_array() || messages->empty())
    refuse_field(fields.where(), "messages", messages != nullptr ? *messages : none, "a list of messages");
  if (tools != nullptr && !tools->is_array()) refuse_field(fields.where(), "tools", *tools, "a list of tools");
  if (variables != nullptr && !variables->is_object())
    refuse_field(fields.where(), "chat_template_kwargs", *variables, "an object");
  const LineContext& context = fields.context();
  const TextModel& model = text_model(context, fields.where());
  const ChatEnd end = read_chat_end(fields);
  std::string text;
  try {
    text = model.chat_text(*messages, tools != nullptr && !tools->empty() ? *tools : none,
                           variables != nullptr ? *variables : no_variables, context.now, end, context.stop);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", fields.where(), error.what()));
  }
  // Templates write the special tokens themselves.
  const bool in_thought =
      end != ChatEnd::kMessage &&
      (ends_in_thought(text) || (end == ChatEnd::kContinued && continues_thought(messages->back())));
  return {encode(text, false, context, fields.where()), in_thought};
}

namespace {

Thoughts read_thoughts(FieldReader& fields) {
  bool apart = flag_or(fields, "separate_reasoning", true);
  if (const OrderedJson* format = fields.find("reasoning_format")) {
    if (*format != "none" && *format != "auto" && *format != "deepseek")
      refuse_field(fields.where(), "reasoning_format", *format, R"("none", "auto" or "deepseek")");
    apart = apart && *format != "none";
  }
  if (!flag_or(fields, "include_reasoning", true)) return Thoughts::kLeftOut;
  return apart ? Thoughts::kApart : Thoughts::kAsText;
}

}  // namespace

MessageForm read_message_form(FieldReader& fields, bool in_thought) {
  MessageForm form{.thoughts = read_thoughts(fields), .in_thought = in_thought};
  const OrderedJson *tools = fields.find("tools"), *choice = fields.find("tool_choice");
  form.calls = tools != nullptr && !tools->empty() && (choice == nullptr || *choice != "none");
  form.one_call = !flag_or(fields, "parallel_tool_calls", true);
  return form;
}

std::string max_length_text(int64_t most, bool scores) {
  if (most > INT32_MAX) return fmt::format("{}", most);  // of windows: no model has that many positions
  return fmt::format("max_position_embeddings{} = {}", scores ? " + 1" : "", most);
}

}  // namespace lfm2
