// Finds the chat template and the special tokens in a Hugging Face folder, as transformers does.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "text/chat/chat_template.h"

namespace lfm2 {

struct ChatTemplateText {
  std::string source;
  std::string what;  // the file and, if it has several templates, the template's name
};

struct ChatTemplateFiles {
  std::optional<ChatTemplateText> standard;    // "default"
  std::optional<ChatTemplateText> with_tools;  // "tool_use", used instead if there are tools
};

// Reads chat_template.jinja and additional_chat_templates/tool_use.jinja if one of them exists, else
// tokenizer_config.json. Error(kData) for files of another form.
ChatTemplateFiles find_chat_template(const std::filesystem::path& folder);

// Those of bos_token, eos_token, unk_token, sep_token, pad_token, cls_token and mask_token that tokenizer_config.json
// has; none without that file.
SpecialTokens read_special_tokens(const std::filesystem::path& folder);

}  // namespace lfm2
