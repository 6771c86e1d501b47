#include "openai/other_fields.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/json/json.h"
#include "openai/request_fields.h"

namespace lfm2 {

namespace {

// The values besides null that change nothing, and their names in messages.
struct Neutral {
  bool (*holds)(const OrderedJson& value);
  std::string_view text;  // "": only null
};
constexpr Neutral kAnything{[](const OrderedJson&) { return true; }, "anything"};
constexpr Neutral kNull{[](const OrderedJson&) { return false; }, ""};
constexpr Neutral kEmpty{[](const OrderedJson& value) { return value == false || value == "" || value.empty(); }, ""};
constexpr Neutral kFalse{[](const OrderedJson& value) { return value == false; }, "false"};
constexpr Neutral kTrue{[](const OrderedJson& value) { return value == true; }, "true"};
constexpr Neutral kZero{[](const OrderedJson& value) { return value.is_number() && value == 0; }, "0"};
constexpr Neutral kOne{[](const OrderedJson& value) { return value.is_number() && value == 1; }, "1"};
constexpr Neutral kAutoOrNone{[](const OrderedJson& value) { return value == "auto" || value == "none"; },
                              "auto or none"};
constexpr Neutral kTextAlone{[](const OrderedJson& value) { return value == OrderedJson::array({"text"}); },
                             R"(["text"])"};

// Fields, grouped by the values that change no answer.
struct Group {
  Neutral neutral;
  std::vector<std::string_view> keys;
};
const Group kGroups[] = {
    // About the account, the service or the speed.
    {kAnything,
     {"cache_prompt",
      "cache_salt",
      "guided_decoding_backend",
      "guided_whitespace_pattern",
      "id_slot",
      "include_reasoning",
      "metadata",
      "model",
      "parallel_tool_calls",
      "prediction",
      "priority",
      "prompt_cache_key",
      "prompt_cache_retention",
      "reasoning_effort",
      "reasoning_format",
      "request_id",
      "rid",
      "safety_identifier",
      "separate_reasoning",
      "service_tier",
      "store",
      "stream_options",
      "user",
      "verbosity"}},
    // OpenAI's, and vLLM's, SGLang's, llama.cpp's and transformers'. "add_special_tokens" is the one of chat templates:
    // that of prompts is read.
    {kNull, {"audio", "json_schema", "truncate_prompt_tokens", "web_search_options"}},
    {kOne, {"best_of", "length_penalty", "num_beams", "num_return_sequences", "repeat_penalty", "typ_p", "typical_p"}},
    {kFalse,
     {"add_special_tokens", "continue_final_message", "echo", "include_stop_str_in_output", "no_stop_trim",
      "prompt_logprobs", "return_token_ids", "return_tokens_as_token_ids", "stream", "use_beam_search"}},
    {kAutoOrNone, {"function_call", "tool_choice"}},
    {kEmpty,
     {"allowed_token_ids", "bad_words", "chat_template", "custom_logit_processor", "documents", "ebnf", "functions",
      "grammar", "logits_processors", "prompt_embeds", "regex", "stop_regex", "structural_tag", "suffix"}},
    {kTextAlone, {"modalities"}},
    {kTrue, {"add_generation_prompt", "normalize", "skip_special_tokens"}},
    {kZero, {"dry_multiplier", "dynatemp_range", "mirostat", "no_repeat_ngram_size", "xtc_probability"}},
};
// The fields that are also checked in generation_config.json; transformers writes many others.
constexpr std::string_view kConfigKeys[] = {"no_repeat_ngram_size", "num_beams", "typical_p"};

const Neutral* find_neutral(std::string_view key) {
  for (const Group& group : kGroups)
    if (std::find(group.keys.begin(), group.keys.end(), key) != group.keys.end()) return &group.neutral;
  return nullptr;
}

}  // namespace

OtherField other_field(std::string_view key, const OrderedJson& value) {
  const Neutral* neutral = find_neutral(key);
  if (neutral == nullptr) return OtherField::kUnknown;
  return value.is_null() || neutral->holds(value) ? OtherField::kChangesNothing : OtherField::kUnsupported;
}

void refuse_unsupported_field(const std::string& where, std::string_view key, const OrderedJson& found,
                              std::string_view otherwise) {
  const Neutral* found_neutral = find_neutral(key);
  const std::string_view neutral = found_neutral != nullptr ? found_neutral->text : "";
  throw Error(ExitCode::kData,
              fmt::format("{}: \"{}\" is {}, which is not supported: expected {}{}", where, key, json_excerpt(found),
                          neutral.empty() ? "" : fmt::format("{}, or ", neutral), otherwise));
}

void refuse_unsupported(const OrderedJson& body, std::initializer_list<std::string_view> read,
                        const std::string& where) {
  for (const auto& [key, value] : body.items())
    if (std::find(read.begin(), read.end(), key) == read.end() && other_field(key, value) == OtherField::kUnsupported)
      refuse_unsupported_field(where, key, value);
}

void refuse_unsupported_config(const OrderedJson& config, const std::string& where) {
  for (const std::string_view key : kConfigKeys)
    if (const auto found = config.find(key);
        found != config.end() && other_field(key, *found) == OtherField::kUnsupported)
      refuse_unsupported_field(where, key, *found, "--generation-config none");
}

}  // namespace lfm2
