// A model's tokenizer and chat templates, read from a Hugging Face folder.
#pragma once

#include <atomic>
#include <ctime>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json/json_fwd.h"
#include "text/chat/chat_messages.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer.h"

namespace lfm2 {

// How the text of a conversation ends.
enum class ChatEnd : uint8_t {
  kPrompt,    // with the generation prompt
  kMessage,   // with the last message, as the template ends it
  kContinued  // in the content of the last message, which is an assistant's and is to be continued
};

class TextModel {
 public:
  // Reads tokenizer.json, and templates and special tokens beside it if there are any. `path` is the folder, or the
  // file, which may have another name. Error(kNoInput) if it is missing, Error(kData) if Tokenizer::parse refuses it. A
  // refused template is an error only when it is used.
  static TextModel open(const std::filesystem::path& path);

  const Tokenizer& tokenizer() const { return tokenizer_; }
  // Error(kData) if there is no template for conversations, or an unsupported one.
  void expect_template() const;
  // The text of a conversation in OpenAI's form (template_messages). Error(kData) if there is no template, if it
  // refuses the conversation, or if the last message cannot be continued (mark_end); Error(kStopped) soon after `stop`
  // becomes true.
  std::string chat_text(const OrderedJson& messages, const OrderedJson& tools, const OrderedJson& variables,
                        std::time_t now, ChatEnd end = ChatEnd::kPrompt, const std::atomic<bool>* stop = nullptr) const;
  // The source of the template, of two that without tools; empty if there is none.
  const std::string& template_source() const { return standard_.source; }
  const SpecialTokens& special_tokens() const { return special_; }
  // An error's text without the path of the model's folder, which clients need not know.
  std::string without_folder(std::string text) const;
  // The checksum of everything that ids depend on: tokenizer.json and the templates.
  const std::string& checksum() const { return checksum_; }
  const std::string& tokenizer_json() const { return tokenizer_json_; }  // for a rank that only decodes

 private:
  struct Template {
    std::optional<ChatTemplate> tree;
    std::string error;  // why there is no template
    std::string source;
    TemplateTraits traits;
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

// The ids as text: invalid UTF-8 becomes U+FFFD, and special tokens are omitted. `bytes`: the text ends after this
// number of bytes of the tokens.
std::string text_of(const Tokenizer& tokenizer, std::span<const TokenId> ids, std::optional<int64_t> bytes = {});

}  // namespace lfm2
