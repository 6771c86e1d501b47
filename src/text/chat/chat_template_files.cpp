#include "text/chat/chat_template_files.h"

#include <fmt/format.h>

#include "base/checked_file.h"
#include "base/error.h"
#include "base/json/json.h"

namespace lfm2 {

namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigName = "tokenizer_config.json";
constexpr uint64_t kMaxBytes = uint64_t{16} << 20;

std::optional<std::string> read_text(const fs::path& path) {
  std::error_code error;  // opening the file reports the error
  if (fs::status(path, error).type() == fs::file_type::not_found) return std::nullopt;
  return read_text_file(path, kMaxBytes);
}

std::optional<ChatTemplateText> read_template(const fs::path& path) {
  std::optional<std::string> text = read_text(path);
  if (!text) return std::nullopt;
  return ChatTemplateText{std::move(*text), path.string()};
}

// The entry, or null if it is absent or null.
const Json* find_entry(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found == json.end() || found->is_null() ? nullptr : &*found;
}

std::optional<Json> read_config(const fs::path& folder) {
  const fs::path path = folder / kConfigName;
  const std::optional<std::string> text = read_text(path);
  if (!text) return std::nullopt;
  Json config = parse_json(*text, path.string());
  if (!config.is_object()) throw Error(ExitCode::kData, fmt::format("{}: not a JSON object", path.string()));
  return config;
}

// A list of {"name": …, "template": …}.
void read_named_templates(const Json& list, const std::string& what, ChatTemplateFiles& files) {
  for (const Json& entry : list) {
    const Json* name = entry.is_object() ? find_entry(entry, "name") : nullptr;
    const Json* source = entry.is_object() ? find_entry(entry, "template") : nullptr;
    if (name == nullptr || source == nullptr || !name->is_string() || !source->is_string())
      throw Error(ExitCode::kData,
                  fmt::format("{}: \"chat_template\" is a list with an entry that has no name and template", what));
    const ChatTemplateText text{source->get<std::string>(),
                                fmt::format("{}: chat_template {}", what, json_excerpt(*name))};
    if (*name == "default") files.standard = text;
    if (*name == "tool_use") files.with_tools = text;
  }
}

// The text of a token, which is a string or the "content" of an object; nullopt if there is none.
std::optional<std::string> token_text(const Json& config, const char* key, const std::string& what) {
  const Json* entry = find_entry(config, key);
  if (entry != nullptr && entry->is_object()) entry = find_entry(*entry, "content");
  if (entry == nullptr) return std::nullopt;
  if (!entry->is_string())
    throw Error(ExitCode::kData, fmt::format("{}: \"{}\" is {}, expected a string", what, key, json_excerpt(*entry)));
  return entry->get<std::string>();
}

}  // namespace

ChatTemplateFiles find_chat_template(const fs::path& folder) {
  ChatTemplateFiles files{read_template(folder / "chat_template.jinja"),
                          read_template(folder / "additional_chat_templates" / "tool_use.jinja")};
  if (files.standard || files.with_tools) return files;
  const std::optional<Json> config = read_config(folder);
  const Json* entry = config ? find_entry(*config, "chat_template") : nullptr;
  if (entry == nullptr) return files;
  const std::string what = (folder / kConfigName).string();
  if (entry->is_string())
    files.standard = ChatTemplateText{entry->get<std::string>(), what + ": chat_template"};
  else if (entry->is_array())
    read_named_templates(*entry, what, files);
  else
    throw Error(ExitCode::kData, fmt::format("{}: \"chat_template\" is neither a string nor a list", what));
  return files;
}

SpecialTokens read_special_tokens(const fs::path& folder) {
  const std::optional<Json> config = read_config(folder);
  if (!config) return {};
  SpecialTokens tokens;
  for (const char* key : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"})
    if (std::optional<std::string> text = token_text(*config, key, (folder / kConfigName).string()))
      tokens[key] = std::move(*text);
  return tokens;
}

}  // namespace lfm2
