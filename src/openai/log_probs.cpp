#include "openai/log_probs.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/json/json.h"
#include "base/utf8.h"
#include "text/tokenizer.h"

namespace lfm2 {

namespace {

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
  if (is_utf8(bytes)) return std::string(bytes);
  std::string text = "bytes:";
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

}  // namespace lfm2
