#include "text/text_model.h"

#include <fmt/format.h>

#include "base/checked_file.h"
#include "base/checksum.h"
#include "base/error.h"
#include "text/chat/chat_template_files.h"
#include "text/chat/tool_call_text.h"
#include "text/stream_decoder.h"

namespace lfm2 {

namespace {

constexpr uint64_t kMaxTokenizerBytes = uint64_t{64} << 20;

}  // namespace

TextModel::TextModel(std::string json, const std::string& what)
    : tokenizer_json_(std::move(json)), tokenizer_(Tokenizer::parse(tokenizer_json_, what)) {}

TextModel TextModel::open(const std::filesystem::path& path) {
  const bool is_folder = std::filesystem::is_directory(path);
  const std::filesystem::path file = is_folder ? path / "tokenizer.json" : path;
  const std::filesystem::path folder = is_folder ? path : std::filesystem::absolute(path).parent_path();
  TextModel model(read_text_file(file, kMaxTokenizerBytes), file.string());
  model.folder_ = folder.string();
  model.read_templates(folder);
  return model;
}

std::string TextModel::without_folder(std::string text) const {
  for (const std::string& name : {(std::filesystem::path(folder_) / "").string(), folder_ + ": "})
    for (size_t at = 0; (at = text.find(name, at)) != std::string::npos;) text.erase(at, name.size());
  return text;
}

void TextModel::read_templates(const std::filesystem::path& folder) {
  Checksum sum;
  const auto add = [&](const std::string& text) { sum.add(std::as_bytes(std::span<const char>(text))); };
  add(tokenizer_json_);
  try {
    const ChatTemplateFiles files = find_chat_template(folder);
    special_ = read_special_tokens(folder);
    for (const auto& [name, token] : special_) add('\n' + name + '\n' + token);
    const auto parse = [&](const std::optional<ChatTemplateText>& text, Template& into) {
      add(text ? "\n1" + text->source : "\n0");
      if (!text) return;
      into.source = text->source;
      into.traits = template_traits(text->source, tokenizer_.find(kBeginCalls) && tokenizer_.find(kEndCalls));
      try {
        into.tree = ChatTemplate::parse(text->source, text->what);
      } catch (const Error& error) {
        into.error = error.what();
      }
    };
    parse(files.standard, standard_);
    parse(files.with_tools, with_tools_);
  } catch (const Error& error) {
    standard_.error = error.what();
  }
  if (!standard_.tree && standard_.error.empty())
    standard_.error = fmt::format(
        "{}: no chat template: expected chat_template.jinja, or \"chat_template\" in "
        "tokenizer_config.json",
        folder.string());
  checksum_ = sum.hex();
}

void TextModel::expect_template() const {
  if (!standard_.tree) throw Error(ExitCode::kData, standard_.error);
}

std::string TextModel::chat_text(const OrderedJson& messages, const OrderedJson& tools, const OrderedJson& variables,
                                 std::time_t now, ChatEnd end, const std::atomic<bool>* stop) const {
  const bool for_tools = !tools.is_null() && (with_tools_.tree || !with_tools_.error.empty());
  const Template& used = for_tools ? with_tools_ : standard_;
  if (!used.tree) throw Error(ExitCode::kData, used.error);
  const LargeJson taken = template_messages(messages, used.traits);
  if (end == ChatEnd::kContinued) mark_end(messages, *taken);
  std::string text = used.tree->render({.messages = *taken,
                                        .tools = tools,
                                        .add_generation_prompt = end == ChatEnd::kPrompt,
                                        .special_tokens = special_,
                                        .variables = variables,
                                        .now = now},
                                       {.stop = stop});
  return end == ChatEnd::kContinued ? text_before_mark(std::move(text)) : text;
}

std::string text_of(const Tokenizer& tokenizer, std::span<const TokenId> ids, std::optional<int64_t> bytes) {
  std::string decoded = tokenizer.decode(ids, true);
  if (bytes) decoded.resize(std::min(decoded.size(), static_cast<size_t>(*bytes)));
  return utf8_text(decoded);
}

}  // namespace lfm2
