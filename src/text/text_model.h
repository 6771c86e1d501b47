// What a model knows of text: its tokenizer and its chat templates, as they lie in a folder of Hugging Face's form.
#pragma once

#include <atomic>
#include <ctime>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json/json_fwd.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer.h"

namespace lfm2 {

class TextModel {
 public:
  // Reads tokenizer.json, and the templates and special tokens beside it where there are some. `path`: the folder, or
  // the file, which may have another name. Error(kNoInput) where it is missing, Error(kData) for one that
  // Tokenizer::parse refuses. A template that is refused is an error only where it is used.
  static TextModel open(const std::filesystem::path& path);

  const Tokenizer& tokenizer() const { return tokenizer_; }
  // Error(kData) where there is no template for conversations, or one that is not supported.
  void expect_template() const;
  // The text of a conversation in OpenAI's form (template_messages), with `goes_on` followed by the generation prompt.
  // Error(kData) where there is no template, or where it refuses the conversation; Error(kStopped) soon after `stop`
  // became true.
  std::string chat_text(const OrderedJson& messages, const OrderedJson& tools, const OrderedJson& variables,
                        std::time_t now, bool goes_on = true, const std::atomic<bool>* stop = nullptr) const;
  // The template's source; empty where there is none. Of two, that without tools.
  const std::string& template_source() const { return standard_.source; }
  const SpecialTokens& special_tokens() const { return special_; }
  // The text of an error without the name of the model's folder: for those who need not know where it lies.
  std::string without_folder(std::string text) const;
  // Everything that ids depend on: of tokenizer.json and the templates.
  const std::string& checksum() const { return checksum_; }
  const std::string& tokenizer_json() const { return tokenizer_json_; }  // for a rank that only decodes

 private:
  struct Template {
    std::optional<ChatTemplate> tree;
    std::string error;  // why there is none
    std::string source;
  };
  TextModel(std::string json, const std::string& what);
  void read_templates(const std::filesystem::path& folder);

  std::string folder_;
  std::string tokenizer_json_;
  Tokenizer tokenizer_;
  Template standard_, with_tools_;
  SpecialTokens special_;
  std::string checksum_;
};

// The ids as text: bytes that are no UTF-8 become U+FFFD, special tokens are left out. `bytes`: the text ends after
// this number of bytes of the tokens.
std::string text_of(const Tokenizer& tokenizer, std::span<const TokenId> ids, std::optional<int64_t> bytes = {});

}  // namespace lfm2
