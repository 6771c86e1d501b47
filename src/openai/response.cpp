#include "openai/response.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

#include "base/error.h"
#include "base/json/error_json.h"
#include "base/json/json.h"
#include "openai/log_probs.h"
#include "openai/message.h"
#include "text/text_model.h"

namespace lfm2 {

namespace {

// Rows of `columns` values, of which the first `used` are written.
template <class T>
void append_rows(std::string& text, std::span<const T> values, size_t columns, size_t used) {
  for (size_t at = 0; at < values.size(); at += columns) {
    text += at > 0 ? ",[" : "[";
    append_values(text, values.subspan(at, used));
    text += ']';
  }
}

std::string json_string(std::string_view text) { return json_text(Json(text)); }

// What the text of a finished choice consists of. Adds the tokens of its thought to `thought_tokens`.
std::vector<AnswerPart> parts_of(const Completion& completion, const ResponseForm& form, const ResponseFacts& facts,
                                 int64_t& thought_tokens) {
  if (facts.tokenizer == nullptr) return {};
  AnswerReader reader(facts.answer_tokens, form.message,
                      {*facts.tokenizer, {}, 0, completion.text_bytes.value_or(INT64_MAX)});
  for (const int32_t id : completion.token_ids) reader.feed(id);
  reader.end(completion.reason == FinishReason::kLength);
  thought_tokens += reader.thought_tokens();
  return reader.pop_parts();
}

OrderedJson choice_of(const Completion& completion, const ResponseForm& form, const ResponseFacts& facts,
                      const std::string& id, int64_t& thought_tokens) {
  const Tokenizer* tokenizer = facts.tokenizer;
  OrderedJson choice{{"index", completion.choice}};
  int64_t calls = 0;
  if (form.form == LineForm::kChatCompletion) {
    const std::vector<AnswerPart> parts = parts_of(completion, form, facts, thought_tokens);
    choice["message"] = message_json(parts, fmt::format("call-{}-{}", id, completion.choice));
    calls = calls_in(parts);
  } else {
    const std::string prompt = tokenizer != nullptr && form.echo ? text_of(*tokenizer, completion.prompt_ids) : "";
    choice["text"] =
        prompt + (tokenizer != nullptr ? text_of(*tokenizer, completion.token_ids, completion.text_bytes) : "");
  }
  TokenOffsets offsets(tokenizer);
  choice["logprobs"] = log_probs_json(completion, form, tokenizer, offsets);
  choice["finish_reason"] = finish_reason(completion.reason, calls);
  return choice;
}

OrderedJson body_of(const Completion& completion, const ResponseForm& form, const ResponseFacts& facts) {
  const char* kind = form.form == LineForm::kChatCompletion ? "chatcmpl" : "cmpl";
  const std::string id = fmt::format("{}-{}", kind, completion.sample);
  int64_t thought_tokens = 0;
  OrderedJson choices = OrderedJson::array({choice_of(completion, form, facts, id, thought_tokens)});
  auto tokens = static_cast<int64_t>(completion.token_ids.size());
  DraftCounts drafts = completion.drafts;
  for (const Completion& other : completion.others) {
    drafts.add(other.drafts);
    choices.push_back(choice_of(other, form, facts, id, thought_tokens));
    tokens += static_cast<int64_t>(other.token_ids.size());
  }
  return response_body(
      id, std::move(choices), form, facts,
      usage_json(completion.prompt_tokens, tokens,
                 form.message.thoughts != Thoughts::kNone ? std::optional(thought_tokens) : std::nullopt, drafts));
}

// The fields of one choice, without the braces around them.
void append_choice(std::string& line, const Completion& completion, const ResponseForm& form,
                   const Tokenizer* tokenizer) {
  line += "\"token_ids\":[";
  append_values(line, std::span(completion.token_ids));
  line += ']';
  if (tokenizer != nullptr)
    line += ",\"text\":" + json_string(text_of(*tokenizer, completion.token_ids, completion.text_bytes));
  line += fmt::format(",\"finish_reason\":\"{}\"", lfm2::name(completion.reason));
  if (!completion.error.empty()) line += ",\"error\":" + json_string(completion.error);
  if (form.log_probs) {
    line += ",\"logprobs\":[";
    append_values(line, std::span(completion.log_probs));
    line += ']';
  }
  if (const auto wanted = static_cast<size_t>(form.log_probs.value_or(0)); wanted > 0) {
    const size_t columns = completion.top_ids.size() / std::max<size_t>(1, completion.token_ids.size());
    line += ",\"top_ids\":[";
    append_rows(line, std::span(completion.top_ids), columns, std::min(wanted, columns));
    line += "],\"top_logprobs\":[";
    append_rows(line, std::span(completion.top_log_probs), columns, std::min(wanted, columns));
    line += ']';
  }
}

}  // namespace

OrderedJson usage_json(int64_t prompt_tokens, int64_t tokens, std::optional<int64_t> thought_tokens,
                       const DraftCounts& drafts) {
  OrderedJson usage{
      {"prompt_tokens", prompt_tokens}, {"completion_tokens", tokens}, {"total_tokens", prompt_tokens + tokens}};
  if (thought_tokens) usage["completion_tokens_details"] = {{"reasoning_tokens", *thought_tokens}};
  if (drafts.made > 0) {
    usage["completion_tokens_details"]["accepted_prediction_tokens"] = drafts.accepted;
    usage["completion_tokens_details"]["rejected_prediction_tokens"] = drafts.made - drafts.accepted;
  }
  return usage;
}

OrderedJson response_body(const std::string& id, OrderedJson choices, const ResponseForm& form,
                          const ResponseFacts& facts, OrderedJson usage) {
  return {{"id", id},
          {"object", form.form == LineForm::kChatCompletion ? "chat.completion" : "text_completion"},
          {"created", facts.created},
          {"model", facts.model},
          {"choices", std::move(choices)},
          {"usage", std::move(usage)}};
}

std::string plain_response(const Completion& completion, const ResponseForm& form, std::string_view name,
                           const Tokenizer* tokenizer) {
  std::string line = fmt::format("{{\"id\":{},", name.empty() ? std::to_string(completion.sample) : std::string(name));
  if (completion.others.empty()) {
    append_choice(line, completion, form, tokenizer);
  } else {
    line += "\"choices\":[{";
    append_choice(line, completion, form, tokenizer);
    for (const Completion& other : completion.others) {
      line += "},{";
      append_choice(line, other, form, tokenizer);
    }
    line += "}]";
  }
  line += '}';
  return line;
}

namespace {

constexpr int kRefused = 400, kFailed = 500;

// The frame of a batch answer. `body` is JSON text, used if there is no error; `status` is that of the error.
std::string batch_frame(int64_t sample, std::string_view name, std::string_view body, std::string_view error,
                        int status) {
  OrderedJson why;
  if (!error.empty()) why = error_object(error, status);
  return fmt::format(
      "{{\"id\":\"batch_req_{0}\",\"custom_id\":{1},\"response\":{{\"status_code\":{2},\"request_id\":\"req_{0}\","
      "\"body\":{3}}},\"error\":{4}}}",
      sample, name.empty() ? "null" : name, error.empty() ? 200 : status, error.empty() ? body : "null",
      json_text(why));
}

// The little-endian bytes of the values.
std::string base64_of(std::span<const float> values) {
  static_assert(std::endian::native == std::endian::little);
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const std::span<const std::byte> bytes = std::as_bytes(values);
  std::string text;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - at);
    uint32_t word = 0;
    for (size_t i = 0; i < 3; ++i) word = word << 8 | (i < count ? std::to_integer<uint32_t>(bytes[at + i]) : 0);
    for (size_t digit = 0; digit < 4; ++digit) text += digit <= count ? kDigits[word >> (18 - 6 * digit) & 63] : '=';
  }
  return text;
}

}  // namespace

std::string batch_response(const Completion& completion, const ResponseForm& form, std::string_view name,
                           const ResponseFacts& facts) {
  const Completion* faulty = &completion;  // the first choice that has an error: there is one answer to all
  for (const Completion& other : completion.others)
    if (faulty->error.empty()) faulty = &other;
  const bool good = faulty->error.empty();
  return batch_frame(completion.sample, name, good ? json_text(body_of(completion, form, facts)) : "", faulty->error,
                     faulty->reason == FinishReason::kError ? kFailed : kRefused);
}

void EmbeddingResponse::add(std::span<const float> state, bool base64) {
  double squares = 0;
  for (const float value : state) not_finite_ = not_finite_ || !std::isfinite(value);
  for (const float value : state) squares += static_cast<double>(value) * static_cast<double>(value);
  const double length = squares == 0 ? 1 : std::sqrt(squares);
  unit_.clear();
  for (const float value : state) unit_.push_back(static_cast<float>(static_cast<double>(value) / length));
  if (inputs_ > 0) data_ += ',';
  data_ += fmt::format("{{\"object\":\"embedding\",\"index\":{},\"embedding\":", inputs_++);
  if (base64) {
    data_ += '"' + base64_of(unit_) + '"';
  } else {
    data_ += '[';
    append_values(data_, std::span<const float>(unit_));
    data_ += ']';
  }
  data_ += '}';
}

std::string EmbeddingResponse::pop_body(std::string_view model, int64_t tokens) {
  std::string body = fmt::format(
      "{{\"object\":\"list\",\"data\":[{}],\"model\":{},\"usage\":{{\"prompt_tokens\":{},\"total_tokens\":{}}}}}",
      data_, json_string(model), tokens, tokens);
  data_.clear();
  inputs_ = 0;
  not_finite_ = false;
  return body;
}

std::string EmbeddingResponse::pop_line(int64_t sample, std::string_view name, std::string_view model, int64_t tokens,
                                        std::string_view refused) {
  const bool failed = not_finite_ && refused.empty();
  const std::string body = pop_body(model, tokens);
  return batch_frame(sample, name, body, failed ? kNotFiniteError : refused, failed ? kFailed : kRefused) + '\n';
}

}  // namespace lfm2
