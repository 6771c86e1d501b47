#include "openai/other_fields.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/json/json.h"
#include "openai/field_reader.h"

namespace lfm2 {

namespace {

// The values that change nothing, beside null, and how a message says them.
struct Neutral {
  bool (*holds)(const OrderedJson& value);
  std::string_view text;  // "": null alone
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
constexpr Neutral kTextType{[](const OrderedJson& value) {
                              const auto type = value.is_object() ? value.find("type") : value.end();
                              return type != value.end() && *type == "text";
                            },
                            R"({"type": "text"})"};

struct Entry {
  std::string_view key;
  Neutral neutral;
};
constexpr Entry kEntries[] = {
    // About the account, the service or the speed.
    {"cache_prompt", kAnything},
    {"cache_salt", kAnything},
    {"guided_decoding_backend", kAnything},
    {"guided_whitespace_pattern", kAnything},
    {"id_slot", kAnything},
    {"metadata", kAnything},
    {"model", kAnything},
    {"parallel_tool_calls", kAnything},
    {"prediction", kAnything},
    {"priority", kAnything},
    {"prompt_cache_key", kAnything},
    {"prompt_cache_retention", kAnything},
    {"reasoning_effort", kAnything},
    {"request_id", kAnything},
    {"rid", kAnything},
    {"safety_identifier", kAnything},
    {"service_tier", kAnything},
    {"store", kAnything},
    {"stream_options", kAnything},
    {"user", kAnything},
    {"verbosity", kAnything},
    // OpenAI's.
    {"audio", kNull},
    {"best_of", kOne},
    {"echo", kFalse},
    {"function_call", kAutoOrNone},
    {"functions", kEmpty},
    {"modalities", kTextAlone},
    {"response_format", kTextType},
    {"stream", kFalse},
    {"suffix", kEmpty},
    {"tool_choice", kAutoOrNone},
    {"web_search_options", kNull},
    // vLLM's, SGLang's, llama.cpp's and transformers'.
    {"add_generation_prompt", kTrue},
    {"add_special_tokens", kFalse},  // to the text of a chat template; read where a prompt becomes tokens
    {"allowed_token_ids", kEmpty},
    {"bad_words", kEmpty},
    {"chat_template", kEmpty},
    {"continue_final_message", kFalse},
    {"custom_logit_processor", kEmpty},
    {"documents", kEmpty},
    {"dry_multiplier", kZero},
    {"dynatemp_range", kZero},
    {"ebnf", kEmpty},
    {"grammar", kEmpty},
    {"guided_choice", kEmpty},
    {"guided_grammar", kEmpty},
    {"guided_json", kNull},
    {"guided_regex", kEmpty},
    {"include_stop_str_in_output", kFalse},
    {"json_schema", kNull},
    {"length_penalty", kOne},
    {"logits_processors", kEmpty},
    {"mirostat", kZero},
    {"no_repeat_ngram_size", kZero},
    {"no_stop_trim", kFalse},
    {"normalize", kTrue},
    {"num_beams", kOne},
    {"num_return_sequences", kOne},
    {"prompt_embeds", kEmpty},
    {"prompt_logprobs", kFalse},
    {"regex", kEmpty},
    {"repeat_penalty", kOne},
    {"return_token_ids", kFalse},
    {"return_tokens_as_token_ids", kFalse},
    {"skip_special_tokens", kTrue},
    {"stop_regex", kEmpty},
    {"structural_tag", kEmpty},
    {"structured_outputs", kEmpty},
    {"truncate_prompt_tokens", kNull},
    {"typ_p", kOne},
    {"typical_p", kOne},
    {"use_beam_search", kFalse},
    {"xtc_probability", kZero},
};

const Entry* find_entry(std::string_view key) {
  const auto* const entry = std::find_if(std::begin(kEntries), std::end(kEntries),
                                         [key](const Entry& candidate) { return candidate.key == key; });
  return entry == std::end(kEntries) ? nullptr : entry;
}

}  // namespace

OtherField other_field(std::string_view key, const OrderedJson& value) {
  const Entry* entry = find_entry(key);
  if (entry == nullptr) return OtherField::kUnknown;
  return value.is_null() || entry->neutral.holds(value) ? OtherField::kChangesNothing : OtherField::kUnsupported;
}

void refuse_unsupported_field(const std::string& where, std::string_view key, const OrderedJson& found) {
  const Entry* entry = find_entry(key);
  const std::string_view neutral = entry != nullptr ? entry->neutral.text : "";
  throw Error(ExitCode::kData,
              fmt::format("{}: \"{}\" is {}, which is not supported: expected {}no such field", where, key,
                          json_excerpt(found), neutral.empty() ? "" : fmt::format("{}, or ", neutral)));
}

void refuse_unsupported(const OrderedJson& body, std::initializer_list<std::string_view> read,
                        const std::string& where) {
  for (const auto& [key, value] : body.items())
    if (std::find(read.begin(), read.end(), key) == read.end() && other_field(key, value) == OtherField::kUnsupported)
      refuse_unsupported_field(where, key, value);
}

}  // namespace lfm2
