#include "stage/io/lines/other_fields.h"

#include <algorithm>
#include <iterator>

#include "kernels/error.h"
#include "stage/io/lines/field_reader.h"
#include "stage/support/json.h"

namespace lfm2 {

namespace {

bool anything(const OrderedJson&) { return true; }
bool only_null(const OrderedJson&) { return false; }
bool nothing(const OrderedJson& value) { return value == false || value == "" || value.empty(); }
bool no(const OrderedJson& value) { return value == false; }
bool yes(const OrderedJson& value) { return value == true; }
bool zero(const OrderedJson& value) { return value.is_number() && value == 0; }
bool one(const OrderedJson& value) { return value.is_number() && value == 1; }
bool auto_or_none(const OrderedJson& value) { return value == "auto" || value == "none"; }
bool only_text(const OrderedJson& value) { return value == OrderedJson::array({"text"}); }
bool text_type(const OrderedJson& value) {
  const auto type = value.is_object() ? value.find("type") : value.end();
  return type != value.end() && *type == "text";
}

struct Entry {
  std::string_view key;
  bool (*changes_nothing)(const OrderedJson& value);
};
constexpr Entry kEntries[] = {
    // About the account, the service or the speed.
    {"metadata", anything},
    {"model", anything},
    {"parallel_tool_calls", anything},
    {"prediction", anything},
    {"priority", anything},
    {"prompt_cache_key", anything},
    {"prompt_cache_retention", anything},
    {"reasoning_effort", anything},
    {"request_id", anything},
    {"safety_identifier", anything},
    {"service_tier", anything},
    {"store", anything},
    {"stream_options", anything},
    {"user", anything},
    {"verbosity", anything},
    // OpenAI's.
    {"audio", only_null},
    {"best_of", one},
    {"echo", no},
    {"function_call", auto_or_none},
    {"functions", nothing},
    {"modalities", only_text},
    {"response_format", text_type},
    {"stream", no},
    {"suffix", nothing},
    {"tool_choice", auto_or_none},
    {"web_search_options", only_null},
    // vLLM's, SGLang's and llama.cpp's.
    {"add_generation_prompt", yes},
    {"add_special_tokens", no},  // to the text of a chat template; read where a prompt becomes tokens
    {"allowed_token_ids", nothing},
    {"bad_words", nothing},
    {"chat_template", nothing},
    {"continue_final_message", no},
    {"documents", nothing},
    {"dry_multiplier", zero},
    {"dynatemp_range", zero},
    {"ebnf", nothing},
    {"grammar", nothing},
    {"guided_choice", nothing},
    {"guided_grammar", nothing},
    {"guided_json", only_null},
    {"guided_regex", nothing},
    {"include_stop_str_in_output", no},
    {"json_schema", only_null},
    {"length_penalty", one},
    {"logits_processors", nothing},
    {"mirostat", zero},
    {"no_repeat_ngram_size", zero},
    {"num_beams", one},
    {"prompt_logprobs", no},
    {"regex", nothing},
    {"repeat_penalty", one},
    {"skip_special_tokens", yes},
    {"stop_regex", nothing},
    {"structured_outputs", nothing},
    {"truncate_prompt_tokens", only_null},
    {"typical_p", one},
    {"use_beam_search", no},
    {"xtc_probability", zero},
};

}  // namespace

OtherField other_field(std::string_view key, const OrderedJson& value) {
  const auto* const entry = std::find_if(std::begin(kEntries), std::end(kEntries),
                                         [key](const Entry& candidate) { return candidate.key == key; });
  if (entry == std::end(kEntries)) return OtherField::kUnknown;
  return value.is_null() || entry->changes_nothing(value) ? OtherField::kChangesNothing : OtherField::kUnsupported;
}

void refuse_unsupported_field(const std::string& where, std::string_view key, const OrderedJson& found) {
  throw Error(ExitCode::kData,
              fmt::format("{}: \"{}\" is {}, which is not supported: expected none", where, key, excerpt(found)));
}

void refuse_unsupported(const OrderedJson& body, std::initializer_list<std::string_view> read,
                        const std::string& where) {
  for (const auto& [key, value] : body.items())
    if (std::find(read.begin(), read.end(), key) == read.end() && other_field(key, value) == OtherField::kUnsupported)
      refuse_unsupported_field(where, key, value);
}

}  // namespace lfm2
