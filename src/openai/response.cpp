#include "openai/response.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

#include "base/error.h"
#include "base/json/error_json.h"
#include "base/json/json.h"
#include "base/utf8.h"
#include "text/stream_decoder.h"
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

// The text of one token. As in OpenAI's answers, a part of a character becomes U+FFFD; "bytes" has the token's bytes.
OrderedJson token_json(const Tokenizer* tokenizer, int32_t id, float log_prob) {
  OrderedJson bytes = nullptr;
  std::string text = fmt::format("token_id:{}", id);
  if (tokenizer != nullptr) {
    text = tokenizer->bytes(id);
    bytes = OrderedJson::array();
    for (const char byte : text) bytes.push_back(static_cast<unsigned char>(byte));
  }
  return {{"token", text}, {"logprob", log_prob}, {"bytes", bytes}};
}

// The log-probabilities of tokens, row by row.
class LogProbs {
 public:
  // Of a completion's own tokens.
  LogProbs(const Completion& completion, size_t wanted)
      : LogProbs(completion.token_ids, completion.log_probs, completion.top_ids, completion.top_log_probs, wanted) {}
  // Of `ids`, the tokens of a prompt after its first one.
  LogProbs(std::span<const int32_t> ids, const TokenLogProbs& probs, size_t wanted)
      : LogProbs(ids, probs.log_probs, probs.top_ids, probs.top_log_probs, wanted) {}

  size_t tokens() const { return ids_.size(); }
  size_t wanted() const { return wanted_; }
  std::span<const int32_t> ids() const { return ids_; }
  int32_t id(size_t token) const { return ids_[token]; }
  float log_prob(size_t token) const { return log_probs_[token]; }
  int32_t top_id(size_t token, size_t k) const { return top_ids_[token * columns_ + k]; }
  float top_log_prob(size_t token, size_t k) const { return top_log_probs_[token * columns_ + k]; }

 private:
  LogProbs(std::span<const int32_t> ids, std::span<const float> log_probs, std::span<const int32_t> top_ids,
           std::span<const float> top_log_probs, size_t wanted)
      : ids_(ids),
        log_probs_(log_probs),
        top_ids_(top_ids),
        top_log_probs_(top_log_probs),
        columns_(ids.empty() ? 0 : top_ids.size() / ids.size()),
        wanted_(std::min(wanted, columns_)) {
    expect(log_probs.size() == ids.size(), "LogProbs: another number of log-probabilities than tokens");
  }

  std::span<const int32_t> ids_;
  std::span<const float> log_probs_;
  std::span<const int32_t> top_ids_;
  std::span<const float> top_log_probs_;
  size_t columns_, wanted_;
};

OrderedJson chat_log_probs(const LogProbs& probs, const Tokenizer* tokenizer) {
  OrderedJson content = OrderedJson::array();
  for (size_t token = 0; token < probs.tokens(); ++token) {
    OrderedJson one = token_json(tokenizer, probs.id(token), probs.log_prob(token));
    one["top_logprobs"] = OrderedJson::array();
    for (size_t k = 0; k < probs.wanted(); ++k)
      one["top_logprobs"].push_back(token_json(tokenizer, probs.top_id(token, k), probs.top_log_prob(token, k)));
    content.push_back(std::move(one));
  }
  return {{"content", content}, {"refusal", nullptr}};
}

// A token as the key of a JSON object, as OpenAI's completions write it. Tokens that are not UTF-8 must keep distinct
// keys.
std::string token_key(const Tokenizer* tokenizer, int32_t id) {
  const std::string_view bytes = tokenizer != nullptr ? tokenizer->bytes(id) : std::string_view();
  if (bytes.empty()) return fmt::format("token_id:{}", id);
  Utf8Stream utf8;
  std::string text;
  utf8.feed(bytes, text);
  utf8.flush(text);
  if (text == bytes) return text;
  text = "bytes:";
  for (const char byte : bytes) text += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return text;
}

// "logprobs" of /v1/completions, part by part.
class CompletionLogProbs {
 public:
  CompletionLogProbs(const Tokenizer* tokenizer, TokenOffsets& offsets) : tokenizer_(tokenizer), counted_(offsets) {}

  // A prompt: its first token has no log-probability.
  void add_prompt(const Completion& completion, size_t wanted) {
    const std::span<const int32_t> ids(completion.prompt_ids);
    add_offsets(ids);
    counted_.end();
    tokens_.push_back(token_key(tokenizer_, ids.front()));
    own_.push_back(nullptr);
    top_.push_back(nullptr);
    add_rows(LogProbs(ids.subspan(1), completion.prompt, wanted));
  }
  void add(const LogProbs& probs) {
    add_offsets(probs.ids());
    add_rows(probs);
  }
  OrderedJson take() {
    return {{"text_offset", std::move(offsets_)},
            {"token_logprobs", std::move(own_)},
            {"tokens", std::move(tokens_)},
            {"top_logprobs", std::move(top_)}};
  }

 private:
  void add_rows(const LogProbs& probs) {
    for (size_t token = 0; token < probs.tokens(); ++token) {
      tokens_.push_back(token_key(tokenizer_, probs.id(token)));
      own_.push_back(probs.log_prob(token));
      OrderedJson row = OrderedJson::object();
      for (size_t k = 0; k < probs.wanted(); ++k)  // if tokens have equal texts, the most probable
        row.emplace(token_key(tokenizer_, probs.top_id(token, k)), probs.top_log_prob(token, k));
      top_.push_back(std::move(row));
    }
  }
  void add_offsets(std::span<const int32_t> ids) {
    const std::vector<int64_t> next = counted_.of(ids);
    offsets_.insert(offsets_.end(), next.begin(), next.end());
  }

  const Tokenizer* tokenizer_;
  TokenOffsets& counted_;
  std::vector<int64_t> offsets_;
  OrderedJson tokens_ = OrderedJson::array(), own_ = OrderedJson::array(), top_ = OrderedJson::array();
};

OrderedJson choice_of(const Completion& completion, const ResponseForm& form, const Tokenizer* tokenizer) {
  const std::string prompt = tokenizer != nullptr && form.echo ? text_of(*tokenizer, completion.prompt_ids) : "";
  const std::string text =
      prompt + (tokenizer != nullptr ? text_of(*tokenizer, completion.token_ids, completion.text_bytes) : "");
  OrderedJson choice{{"index", completion.choice}};
  if (form.form == LineForm::kChatCompletion)
    choice["message"] = {{"role", "assistant"}, {"content", text}, {"refusal", nullptr}};
  else
    choice["text"] = text;
  TokenOffsets offsets(tokenizer);
  choice["logprobs"] = log_probs_json(completion, form, tokenizer, offsets);
  choice["finish_reason"] = name(completion.reason);
  return choice;
}

OrderedJson body_of(const Completion& completion, const ResponseForm& form, const ResponseFacts& facts) {
  OrderedJson choices = OrderedJson::array({choice_of(completion, form, facts.tokenizer)});
  auto tokens = static_cast<int64_t>(completion.token_ids.size());
  for (const Completion& other : completion.others) {
    choices.push_back(choice_of(other, form, facts.tokenizer));
    tokens += static_cast<int64_t>(other.token_ids.size());
  }
  const char* kind = form.form == LineForm::kChatCompletion ? "chatcmpl" : "cmpl";
  return response_body(fmt::format("{}-{}", kind, completion.sample), std::move(choices), form, facts,
                       usage_json(completion.prompt_tokens, tokens));
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

TokenOffsets::TokenOffsets(const Tokenizer* tokenizer) : tokenizer_(tokenizer) {
  if (tokenizer != nullptr) decoder_.emplace(*tokenizer, true);
}

std::vector<int64_t> TokenOffsets::of(std::span<const int32_t> ids) {
  std::vector<int64_t> offsets;
  for (const int32_t id : ids) {
    if (tokenizer_ == nullptr) {
      offsets.push_back(0);
      continue;
    }
    const std::string_view bytes = tokenizer_->bytes(id);
    // The rest of a character that is never completed becomes U+FFFD before the token.
    const bool goes_on = bytes.empty() || tokenizer_->is_special(id) || (bytes.front() & 0xc0) == 0x80;
    offsets.push_back(before_ + (goes_on ? 0 : characters_of(StreamDecoder(*decoder_).flush())));
    before_ += characters_of(decoder_->feed(id));
  }
  return offsets;
}

void TokenOffsets::end() {
  if (decoder_) before_ += characters_of(decoder_->flush());
}

OrderedJson log_probs_json(const Completion& completion, const ResponseForm& form, const Tokenizer* tokenizer,
                           TokenOffsets& offsets) {
  if (!form.log_probs) return nullptr;
  const auto wanted = static_cast<size_t>(*form.log_probs);
  if (form.form == LineForm::kChatCompletion) return chat_log_probs(LogProbs(completion, wanted), tokenizer);
  CompletionLogProbs probs(tokenizer, offsets);
  if (form.echo && !completion.prompt_ids.empty()) probs.add_prompt(completion, wanted);
  probs.add(LogProbs(completion, wanted));
  return probs.take();
}

OrderedJson usage_json(int64_t prompt_tokens, int64_t tokens) {
  return {{"prompt_tokens", prompt_tokens}, {"completion_tokens", tokens}, {"total_tokens", prompt_tokens + tokens}};
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
