// The fields are read as those of batch lines; what is here is for clients that wait for their answers.
#include "serve/openai_request.h"

#include <fmt/format.h>

#include <array>

#include "kernels/error.h"
#include "stage/io/lines/field_reader.h"
#include "stage/support/json.h"
#include "text/text_model.h"

namespace lfm2::serve {

namespace {

const std::string kBody = "request";

// Known to OpenAI's interface or to vLLM's, and not done here: any value but the ones that change nothing is refused,
// since the answer would not be what was asked for.
void refuse_unsupported(const OrderedJson& body, bool chat) {
  constexpr std::array kUnsupported{
      "suffix", "best_of", "prompt_logprobs", "allowed_token_ids", "bad_words", "guided_json", "guided_regex",
      "guided_choice", "guided_grammar", "structured_outputs", "response_format", "use_beam_search", "length_penalty",
      "functions", "function_call", "audio", "modalities", "prediction", "web_search_options",
      // vLLM's:
      "chat_template", "continue_final_message", "truncate_prompt_tokens", "include_stop_str_in_output",
      "add_generation_prompt", "skip_special_tokens", "add_special_tokens"};
  const auto changes_nothing = [chat](std::string_view key, const OrderedJson& value) {
    if (key == "add_generation_prompt" || key == "skip_special_tokens") return value.is_null() || value == true;
    if (key == "add_special_tokens" && !chat) return true;  // see prompts_of; a template writes all that it needs
    if (value.is_null() || value == false || value == "" || value.empty()) return true;
    if (key == "best_of" || key == "length_penalty") return value == 1;
    if (key == "modalities") return value == OrderedJson::array({"text"});
    if (key == "function_call") return value == "auto" || value == "none";
    if (key == "response_format") return value.is_object() && value.contains("type") && value["type"] == "text";
    return false;
  };
  for (const char* key : kUnsupported)
    if (const auto found = body.find(key); found != body.end() && !changes_nothing(key, *found))
      throw Error(ExitCode::kData, fmt::format("\"{}\" is {}, which is not supported", key, excerpt(*found)));
  if (const auto choice = body.find("tool_choice"); choice != body.end() && !choice->is_null())
    if (*choice != "auto" && *choice != "none")
      throw Error(ExitCode::kData, fmt::format("\"tool_choice\" is {}, which is not supported: expected auto or none",
                                               excerpt(*choice)));
}

// A text, a list of ids, or a list of either.
std::vector<std::vector<int32_t>> prompts_of(FieldReader& fields, const RequestLimits& limits) {
  const OrderedJson* prompt = fields.find("prompt");
  if (prompt == nullptr) refuse_field(kBody, "prompt", nullptr, "text or a list of token ids");
  const OrderedJson* special = fields.find("add_special_tokens");  // of the tokenizer, as BOS
  const bool adds_special = special == nullptr || *special != false;
  const auto ids_of = [&](const OrderedJson& one) {
    if (one.is_string()) return encode(one.get_ref<const std::string&>(), adds_special, fields.context(), kBody);
    if (!one.is_array()) refuse_field(kBody, "prompt", one, "text or a list of token ids");
    return fields.ids("prompt", one);
  };
  const bool many = prompt->is_array() && !prompt->empty() && !prompt->front().is_number();
  std::vector<std::vector<int32_t>> prompts;
  if (!many) return {ids_of(*prompt)};
  if (std::ssize(*prompt) > limits.max_requests)  // before their texts take time
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

// How many of the likeliest tokens are to come back with each.
int32_t likeliest_of(const AnswerForm& form, const RequestLimits& limits) {
  const int32_t wanted = form.log_probs.value_or(0);
  if (wanted > limits.max_likeliest)
    throw Error(ExitCode::kData,
                fmt::format("{} log-probabilities beside each token are asked for, expected at most {}", wanted,
                            limits.max_likeliest));
  return wanted;
}

// A prompt that is not continued needs no room behind it.
void check_room(const std::vector<int32_t>& prompt, bool continues, const LineContext& context,
                const RequestLimits& limits) {
  LineContext own = context;
  own.continues = continues;
  check_length(prompt, own, kBody);
  const auto tokens = static_cast<int64_t>(prompt.size());
  if (tokens >= limits.max_prompt_tokens + (continues ? 0 : 1))
    throw Error(ExitCode::kData, fmt::format("the prompt has {} tokens, expected {} {}: the caches have no room "
                                             "for more",
                                             tokens, continues ? "fewer than" : "at most", limits.max_prompt_tokens));
}

void add_requests(const Request& each, const std::vector<int32_t>& prompt, const LineContext& context,
                  const RequestLimits& limits, OpenAiRequest& whole) {
  check_room(prompt, !each.prompt_alone, context, limits);
  const auto tokens = static_cast<int64_t>(prompt.size());
  for (int32_t choice = 0; choice < whole.choices; ++choice) {
    Request& request = whole.requests.emplace_back(each);
    request.prompt = prompt;
    request.choices = 1;  // the server puts them together
    if (!each.prompt_alone) request.max_new = max_new_tokens(tokens, each.max_new, limits.max_prompt_tokens);
    request.rule.seed = seed_of_choice(each.rule.seed, choice);
  }
}

// The answer with the log-probabilities of all prompts must not be larger than an answer may be.
void check_scored(const OpenAiRequest& request, const RequestLimits& limits) {
  int64_t scored = 0;
  for (const Request& one : request.requests)
    if (one.prompt_log_probs) scored += std::ssize(one.prompt) * (1 + one.likeliest);
  const int64_t most = request.stream ? limits.max_streamed : limits.max_scored;
  if (scored > most)
    throw Error(ExitCode::kData,
                fmt::format("\"echo\" with \"logprobs\" asks for {} log-probabilities of prompts, expected at most "
                            "{}{}",
                            scored, most, request.stream ? " in a stream" : ""));
}

}  // namespace

OpenAiRequest parse_openai_request(std::string_view body, bool chat, const LineContext& context,
                                   const RequestDefaults& defaults, const RequestLimits& limits) {
  const OrderedJson json = parse_ordered_json(body, kBody);
  if (!json.is_object()) throw Error(ExitCode::kData, fmt::format("{}: {}, expected an object", kBody, excerpt(json)));
  refuse_unsupported(json, chat);
  FieldReader fields(json, context, kBody);
  SampleRules rules;
  rules.form = chat ? LineForm::kChatCompletion : LineForm::kCompletion;
  const std::vector<std::vector<int32_t>> prompts =
      chat ? std::vector<std::vector<int32_t>>{ids_of_messages(fields)} : prompts_of(fields, limits);
  if (!chat) read_echo(fields, rules);
  read_rules(fields, rules);
  chat ? read_chat_log_probs(fields, rules) : read_log_probs(fields, rules);
  OpenAiRequest whole{
      .form = {rules.form, rules.log_probs, rules.echo}, .prompt_alone = rules.max_new == 0, .choices = rules.choices};
  read_stream(fields, whole);
  if (std::ssize(prompts) * rules.choices > limits.max_requests)
    throw Error(ExitCode::kData, fmt::format("{} prompts with {} choices, expected at most {} together", prompts.size(),
                                             rules.choices, limits.max_requests));
  Request each = request_by_rules(defaults, rules, 0);
  each.echo = false;  // what the answer repeats is known here
  each.likeliest = likeliest_of(whole.form, limits);
  if (!chat && !rules.max_new) each.max_new = 16;  // as OpenAI's completions do
  if (std::ssize(edits_of(each)) > limits.max_edits)
    throw Error(ExitCode::kData, fmt::format("{} tokens are biased or end the text, expected at most {}",
                                             edits_of(each).size(), limits.max_edits));
  for (const std::vector<int32_t>& prompt : prompts) add_requests(each, prompt, context, limits, whole);
  check_scored(whole, limits);
  if (rules.echo)
    for (const std::vector<int32_t>& prompt : prompts)
      whole.prompts.push_back(context.text != nullptr ? text_of(context.text->tokenizer(), prompt) : "");
  const OrderedJson *tools = fields.find("tools"), *choice = fields.find("tool_choice");
  whole.tools = chat && tools != nullptr && !tools->empty() && (choice == nullptr || *choice != "none");
  return whole;
}

EmbeddingsRequest parse_embeddings_request(std::string_view body, const LineContext& context, Hidden hidden,
                                           const RequestLimits& limits) {
  const OrderedJson json = parse_ordered_json(body, kBody);
  if (!json.is_object()) throw Error(ExitCode::kData, fmt::format("{}: {}, expected an object", kBody, excerpt(json)));
  LineContext own = context;
  own.continues = false;
  FieldReader fields(json, own, kBody);
  RequestLine line;
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
    check_room(request.prompt, false, own, limits);
    request.hidden = hidden;
    ask_of_prompt_alone(request);
  }
  return whole;
}

}  // namespace lfm2::serve
