// Finds the chat template and the special tokens in a folder of Hugging Face's form, as transformers does.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "text/chat/chat_template.h"

namespace lfm2 {

struct ChatTemplateText {
  std::string source;
  std::string what;  // the file, and the template's name in it where there are several
};

struct ChatTemplateFiles {
  std::optional<ChatTemplateText> standard;    // "default"
  std::optional<ChatTemplateText> with_tools;  // "tool_use", which takes its place where tools are given
};

// From chat_template.jinja and additional_chat_templates/tool_use.jinja where one of them exists, else from
// tokenizer_config.json. Error(kData) for files that are not as Hugging Face writes them.
ChatTemplateFiles find_chat_template(const std::filesystem::path& folder);

// bos_token, eos_token, unk_token, sep_token, pad_token, cls_token and mask_token of tokenizer_config.json, those that
// it has; none where there is no such file.
SpecialTokens read_special_tokens(const std::filesystem::path& folder);

}  // namespace lfm2
