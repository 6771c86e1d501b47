// Reads the fields as those of batch lines. This file adds what only HTTP clients can ask for.
#include "openai/openai_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/json/large_json.h"
#include "openai/other_fields.h"
#include "openai/request_fields.h"
#include "text/text_model.h"

namespace lfm2 {

namespace {

const std::string kBody = "request";
constexpr auto kAnySeed = static_cast<uint64_t>(-1);  // as llama.cpp's clients say it

// A text, a list of ids, or a list of either.
std::vector<std::vector<int32_t>> prompts_of(FieldReader& fields, const RequestLimits& limits) {
  const OrderedJson* prompt = fields.find("prompt");
  if (prompt == nullptr) refuse_field(kBody, "prompt", nullptr, "text or a list of token ids");
  const bool adds_special = adds_special_tokens(fields);
  const auto ids_of = [&](const OrderedJson& one) {
    if (one.is_string()) return encode(one.get_ref<const std::string&>(), adds_special, fields.context(), kBody);
    if (!one.is_array()) refuse_field(kBody, "prompt", one, "text or a list of token ids");
    return fields.ids("prompt", one);
  };
  const bool many = prompt->is_array() && !prompt->empty() && !prompt->front().is_number();
  std::vector<std::vector<int32_t>> prompts;
  if (!many) return {ids_of(*prompt)};
  if (std::ssize(*prompt) > limits.max_requests)  // before the texts are tokenised, which takes time
    throw Error(ExitCode::kData, fmt::format("{} prompts, expected at most {}", prompt->size(), limits.max_requests));
  for (const OrderedJson& one : *prompt) prompts.push_back(ids_of(one));
  return prompts;
}

void read_stream(FieldReader& fields, OpenAiRequest& request) {
  request.stream = fields.flag("stream");
  const OrderedJson* options = fields.find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) refuse_field(kBody, "stream_options", *options, "an object");
  const auto usage = options->find("include_usage");
  request.include_usage = usage != options->end() && *usage == true;
}

// The number of top logprobs returned with each token.
int32_t top_logprobs_of(const ResponseForm& form, const RequestLimits& limits) {
  const int32_t wanted = form.log_probs.value_or(0);
  if (wanted > limits.max_top_logprobs)
    throw Error(ExitCode::kData,
                fmt::format("{} log-probabilities beside each token are asked for, expected at most {}", wanted,
                            limits.max_top_logprobs));
  return wanted;
}

// A prompt without generation needs no room after it.
void check_room(const std::vector<int32_t>& prompt, bool continues, const LineContext& context,
                const RequestLimits& limits, std::string_view field) {
  const int64_t max_positions = std::min(context.max_positions, limits.max_prompt_tokens);  // that the caches have
  check_length(prompt, context, kBody, field, max_positions, continues);
}

void add_requests(const Request& each, const std::vector<int32_t>& prompt, const LineContext& context,
                  const RequestLimits& limits, std::string_view prompt_field, OpenAiRequest& whole) {
  check_room(prompt, !each.prefill_only, context, limits, prompt_field);
  const auto tokens = static_cast<int64_t>(prompt.size());
  for (int32_t choice = 0; choice < whole.choices; ++choice) {
    Request& request = whole.requests.emplace_back(each);
    request.prompt = prompt;
    request.choices = 1;  // the server itself joins the choices
    if (!each.prefill_only) request.max_new = max_new_tokens(tokens, each.max_new, limits.max_prompt_tokens);
    request.rule.seed = seed_of_choice(each.rule.seed, choice);
  }
}

// The log-probabilities of all prompts must fit into one answer.
void check_scored(const OpenAiRequest& request, const RequestLimits& limits) {
  int64_t scored = 0;
  for (const Request& one : request.requests)
    if (one.prompt_log_probs) scored += std::ssize(one.prompt) * (1 + one.num_top_logprobs);
  const int64_t most = request.stream ? limits.max_streamed : limits.max_scored;
  if (scored > most)
    throw Error(ExitCode::kData,
                fmt::format("\"echo\" with \"logprobs\" asks for {} log-probabilities of prompts, expected at most "
                            "{}{}",
                            scored, most, request.stream ? " in a stream" : ""));
}

}  // namespace

LargeJson parse_request_body(std::string_view body) {
  LargeJson json = parse_large_json(body, kBody);
  if (!json->is_object())
    throw Error(ExitCode::kData, fmt::format("{}: {}, expected an object", kBody, json_excerpt(*json)));
  return json;
}

OpenAiRequest parse_openai_request(std::string_view body, bool chat, const LineContext& context,
                                   const RequestDefaults& defaults, const RequestLimits& limits,
                                   std::optional<uint64_t> fresh_seed) {
  return read_openai_request(*parse_request_body(body), chat, context, defaults, limits, fresh_seed);
}

OpenAiRequest read_openai_request(const OrderedJson& json, bool chat, const LineContext& context,
                                  const RequestDefaults& defaults, const RequestLimits& limits,
                                  std::optional<uint64_t> fresh_seed, bool responses) {
  constexpr const char* kTruncate = "truncate_prompt_tokens";
  chat ? refuse_unsupported(json,
                            {"stream", "return_token_ids", "tool_choice", "add_generation_prompt",
                             "continue_final_message", kTruncate},
                            kBody)
       : refuse_unsupported(json, {"stream", "return_token_ids", "echo", "add_special_tokens", kTruncate}, kBody);
  const std::string_view prompt_field = responses ? "input" : chat ? "messages" : "prompt";
  FieldReader fields(json, context, kBody);
  SampleRules rules;
  rules.form = chat ? LineForm::kChatCompletion : LineForm::kCompletion;
  std::vector<std::vector<int32_t>> prompts;
  if (chat) {
    ChatPrompt prompt = prompt_of_messages(fields);
    prompts.push_back(std::move(prompt.ids));
    rules.message = read_message_form(fields, prompt.in_thought);
  } else {
    prompts = prompts_of(fields, limits);
  }
  read_rules(fields, rules, rules.message.in_thought, responses);
  OpenAiRequest whole;
  whole.form = {rules.form, rules.log_probs, rules.echo, rules.message};
  whole.prefill_only = rules.sampling.max_new == 0;
  whole.choices = rules.choices;
  read_stream(fields, whole);
  whole.token_ids = fields.flag("return_token_ids") || context.text == nullptr;
  if (std::ssize(prompts) * rules.choices > limits.max_requests)
    throw Error(ExitCode::kData, fmt::format("{} prompts with {} choices, expected at most {} together", prompts.size(),
                                             rules.choices, limits.max_requests));
  if (rules.sampling.seed == kAnySeed) rules.sampling.seed.reset();
  const bool fresh = !rules.sampling.seed && fresh_seed;
  if (fresh) rules.sampling.seed = fresh_seed;
  if (!chat && !rules.sampling.max_new) rules.sampling.max_new = 16;  // as OpenAI's completions do
  const int64_t kept = read_truncation(fields, rules, std::min(context.max_positions, limits.max_prompt_tokens));
  for (std::vector<int32_t>& prompt : prompts) truncate_prompt(prompt, kept);
  Request each = request_by_rules(defaults, rules, 0);
  if (fresh && each.rule.temperature > 0) whole.fresh_seed = fresh_seed;
  each.echo = false;  // the prompt that the answer repeats is known here
  each.num_top_logprobs = top_logprobs_of(whole.form, limits);
  if (std::ssize(edits_of(each)) > limits.max_edits)
    throw Error(ExitCode::kData, fmt::format("{} tokens are biased or end the text, expected at most {}",
                                             edits_of(each).size(), limits.max_edits));
  for (const std::vector<int32_t>& prompt : prompts) {
    add_requests(each, prompt, context, limits, prompt_field, whole);
    if (fresh) ++each.rule.seed;
  }
  check_scored(whole, limits);
  if (rules.echo)
    for (const std::vector<int32_t>& prompt : prompts)
      whole.prompts.push_back(context.text != nullptr ? text_of(context.text->tokenizer(), prompt) : "");
  return whole;
}

EmbeddingsRequest parse_embeddings_request(std::string_view body, const LineContext& context, Hidden hidden,
                                           const RequestLimits& limits) {
  const LargeJson parsed = parse_request_body(body);
  const OrderedJson& json = *parsed;
  LineContext own = context;
  own.continues = false;
  FieldReader fields(json, own, kBody);
  RequestLine line;
  refuse_unsupported(json, {"add_special_tokens"}, kBody);
  read_embeddings(fields, line);
  if (std::ssize(line.inputs) > limits.max_inputs)
    throw Error(ExitCode::kData,
                fmt::format("\"input\" has {} inputs, expected at most {}", line.inputs.size(), limits.max_inputs));
  if (const int64_t numbers = std::ssize(line.inputs) * context.hidden; numbers > limits.max_embedded)
    throw Error(ExitCode::kData,
                fmt::format("\"input\" has {} inputs for embeddings of {} numbers, expected at most {}",
                            line.inputs.size(), context.hidden, limits.max_embedded / context.hidden));
  EmbeddingsRequest whole{.base64 = line.base64};
  auto ids = line.ids.begin();
  for (const int32_t tokens : line.inputs) {
    Request& request = whole.requests.emplace_back();
    request.prompt.assign(ids, ids + tokens);
    ids += tokens;
    check_room(request.prompt, false, own, limits, "input");
    request.hidden = hidden;
    make_prefill_only(request);
  }
  return whole;
}

}  // namespace lfm2
