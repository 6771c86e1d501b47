// Where Hugging Face's folders have their chat template and special tokens.
#include "text/chat/chat_template_files.h"

#include "support/shards.h"
#include "support/weights_support.h"

namespace lfm2 {
namespace {

namespace fs = std::filesystem;
using test::expect_error;

class ChatTemplateFilesTest : public ::testing::Test {
 protected:
  ChatTemplateFilesTest() { fs::create_directories(folder_ / "additional_chat_templates"); }

  void write(const std::string& name, const std::string& text) { test::write_bytes(folder_ / name, text); }
  std::string chosen(bool tools) {
    const ChatTemplateFiles files = find_chat_template(folder_);
    const std::optional<ChatTemplateText>& found = tools && files.with_tools ? files.with_tools : files.standard;
    return found ? found->source : "none";
  }

  const test::TemporaryFolder own_;  // tests of this class run side by side
  const fs::path folder_ = own_.path();
};

TEST_F(ChatTemplateFilesTest, NothingThere) {
  EXPECT_EQ(chosen(false), "none");
  EXPECT_TRUE(read_special_tokens(folder_).empty());
  write("tokenizer_config.json", "{}");
  EXPECT_EQ(chosen(true), "none");
}

TEST_F(ChatTemplateFilesTest, AFileWinsOverTheConfig) {
  write("tokenizer_config.json", R"({"chat_template": "config"})");
  EXPECT_EQ(chosen(false), "config");
  write("chat_template.jinja", "file");
  EXPECT_EQ(chosen(false), "file");
  EXPECT_EQ(chosen(true), "file");
  write("additional_chat_templates/tool_use.jinja", "tools");
  EXPECT_EQ(chosen(false), "file");
  EXPECT_EQ(chosen(true), "tools");
}

TEST_F(ChatTemplateFilesTest, NamedTemplates) {
  write("tokenizer_config.json", R"({"chat_template": [{"name": "default", "template": "a"},
    {"name": "rag", "template": "b"}, {"name": "tool_use", "template": "c"}]})");
  EXPECT_EQ(chosen(false), "a");
  EXPECT_EQ(chosen(true), "c");
  EXPECT_NE(find_chat_template(folder_).with_tools->what.find("tool_use"), std::string::npos);
  write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "c"}]})");
  EXPECT_EQ(chosen(false), "none");
}

TEST_F(ChatTemplateFilesTest, SpecialTokens) {
  write(
      "tokenizer_config.json",
      R"({"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false}, "pad_token": null, "unk_token": ""})");
  const SpecialTokens tokens = read_special_tokens(folder_);
  EXPECT_EQ(tokens, (SpecialTokens{{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", ""}}));
}

TEST_F(ChatTemplateFilesTest, RefusesOtherForms) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[]", "not a JSON object"},
      {"{", "not valid JSON"},
      {R"({"chat_template": 3})", "neither a string nor a list"},
      {R"({"chat_template": [3]})", "no name and template"},
      {R"({"chat_template": [{"name": "default"}]})", "no name and template"},
  };
  for (const auto& [text, part] : cases) {
    SCOPED_TRACE(text);
    write("tokenizer_config.json", text);
    expect_error([&] { find_chat_template(folder_); }, ExitCode::kData, {"tokenizer_config.json", part});
  }
  write("tokenizer_config.json", R"({"bos_token": 1})");
  expect_error([&] { read_special_tokens(folder_); }, ExitCode::kData, {"bos_token", "is 1"});
}

}  // namespace
}  // namespace lfm2
