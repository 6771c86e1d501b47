// What shards say of the text files beside them, and where a job finds these.
#include "stage/shards/text_folder.h"

#include "support/shard_edits.h"
#include "support/text_model.h"

namespace lfm2::test {
namespace {

namespace fs = std::filesystem;

class TextFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    write_text_model(folder_ / "model");
    split_model(folder_ / "model", shards());
  }
  fs::path shards() const { return folder_ / "shards"; }
  fs::path stage(int64_t number) const { return shards() / shard::file_name(number, 2); }
  fs::path found(const fs::path& option = {}) const { return text_folder(ShardSet::open(shards()), shards(), option); }
  void set_attribute(int64_t number, const std::string& value) const {
    edit_shard(stage(number), [&](hid_t file) {
      remove_attribute(file, "/", shard::kTextFilesAttribute);
      add_text(file, "/", shard::kTextFilesAttribute, value);
      // The library leaves the old value where no structure is any more.
      if (H5Aexists(file, shard::kGapsAttribute) > 0) remove_attribute(file, "/", shard::kGapsAttribute);
    });
  }

  TemporaryFolder folder_;
};

TEST_F(TextFolderTest, ShardsListTheFilesWithChecksums) {
  const auto listed = ShardSet::open(shards()).text_files();
  ASSERT_EQ(listed.size(), small_texts().size());
  for (const auto& [name, content] : small_texts()) EXPECT_EQ(listed.at(name), checksum_of(content)) << name;
  EXPECT_EQ(found(), shards());
}

TEST_F(TextFolderTest, OlderShardsHaveNone) {
  split("tiny-dense", folder_ / "older", equal_partition(5, 2));
  write_texts(folder_ / "older", small_texts());
  const ShardSet older = ShardSet::open(folder_ / "older");
  EXPECT_TRUE(older.text_files().empty());
  EXPECT_EQ(text_folder(older, folder_ / "older", {}), fs::path());  // whatever lies beside them
  EXPECT_EQ(text_folder(older, folder_ / "older", folder_ / "model"), folder_ / "model");
}

TEST_F(TextFolderTest, ShardsWithoutATokenizerHaveNone) {
  write_text_model(folder_ / "other", {{"generation_config.json", "{}"}});
  split_model(folder_ / "other", folder_ / "other-shards");
  const ShardSet set = ShardSet::open(folder_ / "other-shards");
  EXPECT_EQ(set.text_files().size(), 1u);
  EXPECT_EQ(text_folder(set, folder_ / "other-shards", {}), fs::path());
}

TEST_F(TextFolderTest, TheOptionWinsAndNeedsATokenizer) {
  fs::create_directory(folder_ / "mine");
  expect_error([&] { found(folder_ / "mine"); }, ExitCode::kNoInput, {"--tokenizer", "/mine", "tokenizer.json"});
  expect_error([&] { found(folder_ / "absent"); }, ExitCode::kNoInput, {"--tokenizer", "/absent"});
  write_texts(folder_ / "mine", {{"tokenizer.json", "{}"}});
  EXPECT_EQ(found(folder_ / "mine"), folder_ / "mine");
  fs::remove(shards() / "tokenizer.json");  // is not looked at then
  EXPECT_EQ(found(folder_ / "mine"), folder_ / "mine");
}

TEST_F(TextFolderTest, EveryListedFileMustBeThereUnchanged) {
  for (const auto& [name, content] : small_texts()) {
    SCOPED_TRACE(name);
    const fs::path path = shards() / name;
    const std::string expected = checksum_of(content), changed = content + " ";
    fs::remove(path);
    expect_error([&] { found(); }, ExitCode::kNoInput, {path.string(), "missing", expected});
    write_bytes(path, changed);
    expect_error([&] { found(); }, ExitCode::kData, {path.string(), checksum_of(changed), expected});
    write_bytes(path, content);
    EXPECT_EQ(found(), shards());
  }
}

TEST_F(TextFolderTest, AFileThatIsTooLargeIsNotRead) {
  fs::resize_file(shards() / "chat_template.jinja", shard::kMaxTextFileBytes + 1);
  expect_error([&] { found(); }, ExitCode::kData, {"chat_template.jinja"});
}

TEST_F(TextFolderTest, AllShardsOfASplitListTheSame) {
  const std::string other = "{\"tokenizer.json\": \"" + std::string(32, 'a') + "\"}";
  set_attribute(1, other);
  expect_error([&] { ShardSet::open(shards()); }, ExitCode::kData,
               {"stage-01-of-02.h5", "text_files differs", "stage-00-of-02.h5"});
  set_attribute(0, other);
  EXPECT_EQ(ShardSet::open(shards()).text_files(),
            (std::map<std::string, std::string>{{"tokenizer.json", std::string(32, 'a')}}));
  edit_shard(stage(1), [](hid_t file) { remove_attribute(file, "/", shard::kTextFilesAttribute); });
  expect_error([&] { ShardSet::open(shards()); }, ExitCode::kData, {"stage-01-of-02.h5", "text_files differs"});
}

TEST_F(TextFolderTest, RefusesListsThatSplitDoesNotWrite) {
  const std::string good(32, 'a');
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "JSON"},
      {"[]", "expected a JSON object"},
      {"{\"../tokenizer.json\": \"" + good + "\"}", "../tokenizer.json"},
      {"{\"/etc/passwd\": \"" + good + "\"}", "/etc/passwd"},
      {"{\"weights.bin\": \"" + good + "\"}", "weights.bin"},
      {"{\"tokenizer.json\": 7}", "is 7, expected 32 hex digits"},
      {"{\"tokenizer.json\": \"" + good + "a\"}", "expected 32 hex digits"},
      {"{\"tokenizer.json\": \"" + std::string(32, 'A') + "\"}", "expected 32 hex digits"},
      {"{\"tokenizer.json\": \"" + good + "\", \"tokenizer.json\": \"" + good + "\"}", "stands twice"}};
  for (const auto& [text, part] : cases) {
    SCOPED_TRACE(text);
    set_attribute(0, text);
    expect_error([&] { ShardSet::open(shards()); }, ExitCode::kData, {"stage-00-of-02.h5: text_files", part});
  }
}

}  // namespace
}  // namespace lfm2::test
