// Tokenizers with the tokens of calls and of thoughts, and what a model that draws with them writes.
#pragma once

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/json/json.h"
#include "support/weights_support.h"
#include "text/text_model.h"
#include "unit/text/small_tokenizer.h"

namespace lfm2::test {

// The small tokenizer with more special tokens, and a chat template, in a folder of their own.
class AnswerModel {
 public:
  AnswerModel(const std::vector<std::string>& special, const std::string& chat_template) : special_(special) {
    Json json = small_tokenizer_json();
    auto id = static_cast<int64_t>(small_tokenizer().size());
    for (const std::string& text : special) {
      Json token = json["added_tokens"].front();
      token["id"] = id++;
      token["content"] = text;
      json["added_tokens"].push_back(std::move(token));
    }
    write_bytes(folder_ / "tokenizer.json", json.dump());
    write_bytes(folder_ / "chat_template.jinja", chat_template);
    text_ = std::make_unique<TextModel>(TextModel::open(folder_.path()));
  }
  const TextModel& text() const { return *text_; }
  const Tokenizer& tokenizer() const { return text_->tokenizer(); }
  std::filesystem::path folder() const { return folder_.path(); }

  // The tokens of a text. Special tokens are spelled; `by_byte`: all else is a token for each byte.
  std::vector<TokenId> ids(std::string_view text, bool by_byte) const {
    std::vector<TokenId> ids;
    while (!text.empty()) {
      size_t at = text.size(), length = 0;
      for (const std::string& one : special_)
        if (const size_t found = text.find(one); found < at) {
          at = found;
          length = one.size();
        }
      add_ids(text.substr(0, at), by_byte, ids);
      if (length > 0) ids.push_back(*tokenizer().find(text.substr(at, length)));
      text.remove_prefix(at + length);
    }
    return ids;
  }

 private:
  void add_ids(std::string_view text, bool by_byte, std::vector<TokenId>& ids) const {
    if (!by_byte) return tokenizer().encode(text, false, ids);
    for (const char byte : text) ids.push_back(*tokenizer().find(byte_level_character(static_cast<uint8_t>(byte))));
  }

  const std::vector<std::string> special_;
  TemporaryFolder folder_;
  std::unique_ptr<TextModel> text_;
};

}  // namespace lfm2::test
