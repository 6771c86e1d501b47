// Text files go with the weights through split, merge and verify, and what no job could use is refused before a shard
// is written.
#include "stage/shards/shard_format.h"
#include "stage/shards/shard_reader.h"
#include "support/text_model.h"
#include "weights-tools/formats/shard_writer.h"
#include "weights-tools/model/copy.h"
#include "weights-tools/model/text_files.h"

namespace lfm2::test {
namespace {

namespace fs = std::filesystem;

using Texts = std::map<std::string, std::string>;

void merge(const fs::path& shards, const fs::path& out, bool force = false) {
  run_merge({.shards = shards, .out = out, .force = force}, kSilent);
}

void verify(const fs::path& shards, bool untrusted = false) {
  run_verify({.model = shards, .against = {}, .config = {}, .untrusted = untrusted}, kSilent);
}

class TextFilesTest : public testing::Test {
 protected:
  void SetUp() override { write_text_model(model()); }
  fs::path model() const { return folder_ / "model"; }
  fs::path shards() const { return folder_ / "shards"; }

  TemporaryFolder folder_;
};

TEST_F(TextFilesTest, GoThroughSplitAndMerge) {
  split_model(model(), shards());
  expect_files(texts_below(shards()), small_texts());
  merge(shards(), folder_ / "back");
  expect_files(files_below(folder_ / "back"), files_below(model()));
  merge(shards(), folder_ / "m.bin");  // beside the file
  Texts beside = texts_below(folder_.path());
  std::erase_if(beside, [&](const auto& file) { return !small_texts().contains(file.first); });
  expect_files(beside, small_texts());
  split_model(shards(), folder_ / "again", 3);
  expect_files(texts_below(folder_ / "again"), small_texts());
  EXPECT_EQ(ShardSet::open(folder_ / "again").text_files(), ShardSet::open(shards()).text_files());
}

TEST_F(TextFilesTest, AreTakenFromBesideEveryForm) {
  const auto split_texts = [&](const fs::path& path, std::optional<std::string> config = {}) {
    run_split({.model = path,
               .out = shards(),
               .dtype = "keep",
               .config = std::move(config),
               .stages = 2,
               .layers = {},
               .force = true},
              kSilent);
    return texts_below(shards());
  };
  expect_files(split_texts(model() / "model.safetensors"), small_texts());
  split_model(model(), folder_ / "source");
  merge(folder_ / "source", folder_ / "model/m.bin", true);
  expect_files(split_texts(model() / "m.bin"), small_texts());
  // A model without any takes those beside the configuration, but a model with some takes its own alone.
  fs::create_directory(folder_ / "bin");
  fs::rename(model() / "m.bin", folder_ / "bin/model.bin");
  expect_files(split_texts(folder_ / "bin", model() / "config.json"), small_texts());
  write_bytes(folder_ / "bin/generation_config.json", "{}");
  expect_files(split_texts(folder_ / "bin", model() / "config.json"), (Texts{{"generation_config.json", "{}"}}));
  fs::remove(folder_ / "bin/generation_config.json");
  fs::remove(model() / "tokenizer.json");
  fs::copy_file(model() / "config.json", folder_ / "bin/config.json");
  expect_files(split_texts(folder_ / "bin"), Texts());
}

TEST_F(TextFilesTest, TheWeightsAloneMakeTheSplitId) {
  split_model(model(), shards());
  write_text_model(folder_ / "plain", {});
  split_model(folder_ / "plain", folder_ / "plain-shards");
  EXPECT_EQ(ShardSet::open(shards()).split_id(), ShardSet::open(folder_ / "plain-shards").split_id());
  // As the same model was split before there were text files.
  const auto source = open_model(folder_ / "plain");
  ShardWriter writer(*source, equal_partition(5, 2), {}, folder_ / "before", false);
  Progress progress("split", 0, Progress::Unit::kBytes, ProgressMode::kOff);
  copy_model(*source, writer, progress);
  expect_files(files_below(folder_ / "plain-shards"), files_below(folder_ / "before"));
}

TEST_F(TextFilesTest, BrokenOnesAreRefusedBeforeAnyShard) {
  const std::vector<std::pair<Texts, std::string>> cases = {
      {{{"tokenizer.json", "{"}}, "not valid JSON"},
      {{{"tokenizer.json", "{}"}}, "tokenizer.json"},
      {{{"tokenizer.json", "version https://git-lfs.github.com/spec/v1\n"}}, "not valid JSON"},
      {{{"generation_config.json", "[1]"}}, "[1], expected a JSON object"},
      {{{"generation_config.json", "{\"top_k\": }"}}, "not valid JSON"}};
  for (const auto& [texts, part] : cases) {
    SCOPED_TRACE(part);
    const TemporaryFolder other;
    write_text_model(other / "model", texts);
    const std::string path = (other / "model" / texts.begin()->first).string();
    expect_error([&] { split_model(other / "model", other / "shards"); }, ExitCode::kData, {path, part});
    EXPECT_EQ(file_names(other.path()), std::set<std::string>{"model"});
    split_model(model(), shards(), 2, true);
    const auto before = files_below(shards());
    expect_error([&] { split_model(other / "model", shards(), 2, true); }, ExitCode::kData, {path});
    expect_files(files_below(shards()), before);
  }
}

TEST_F(TextFilesTest, ALinkThatLeadsNowhereIsRefused) {
  fs::remove(model() / "tokenizer.json");
  fs::create_symlink("../blobs/0123", model() / "tokenizer.json");
  expect_error([&] { split_model(model(), shards()); }, ExitCode::kNoInput, {"model/tokenizer.json"});
  fs::create_directory(folder_ / "blobs");
  write_bytes(folder_ / "blobs/0123", small_texts().at("tokenizer.json"));
  split_model(model(), shards());
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(shards() / "tokenizer.json")));
}

TEST_F(TextFilesTest, ANewSplitReplacesThoseOfTheOlderOne) {
  split_model(model(), shards(), 3);
  write_bytes(shards() / "notes.txt", "mine");
  const Texts newer = {{"tokenizer.json", small_texts().at("tokenizer.json") + "\n"}, {"chat_template.jinja", "new"}};
  write_text_model(folder_ / "newer", newer);
  write_bytes(shards() / "tokenizer.json.tmp.12", "of a split that was killed");
  write_bytes(shards() / "additional_chat_templates/tool_use.jinja.tmp.3", "");
  split_model(folder_ / "newer", shards(), 2, true);
  Texts expected = newer;
  expected["notes.txt"] = "mine";
  expect_files(texts_below(shards()), expected);
  EXPECT_EQ(file_names(shards()), (std::set<std::string>{"chat_template.jinja", "notes.txt", "stage-00-of-02.h5",
                                                         "stage-01-of-02.h5", "tokenizer.json"}));
  verify(shards());
}

TEST_F(TextFilesTest, FilesThatNoShardListsStay) {
  write_text_model(folder_ / "plain", {});
  split_model(folder_ / "plain", shards());
  write_texts(shards(), {{"tokenizer.json", "mine"}, {"additional_chat_templates/other.jinja", "mine too"}});
  split_model(folder_ / "plain", shards(), 3, true);
  expect_files(texts_below(shards()),
               (Texts{{"tokenizer.json", "mine"}, {"additional_chat_templates/other.jinja", "mine too"}}));
  split_model(model(), shards(), 3, true);
  split_model(folder_ / "plain", shards(), 3, true);
  expect_files(texts_below(shards()), (Texts{{"additional_chat_templates/other.jinja", "mine too"}}));
}

TEST_F(TextFilesTest, SplittingInPlaceKeepsThem) {
  split_model(model(), model(), 2, true);
  expect_files(texts_below(model()), small_texts());
  verify(model());
}

TEST_F(TextFilesTest, AFailureLeavesNothingNew) {
  const std::vector<TextFile> texts = {{"tokenizer.json", "new", {}},
                                       {"additional_chat_templates/tool_use.jinja", "new", {}}};
  const auto source = open_model(model());
  { const ShardWriter writer(*source, equal_partition(5, 2), {}, shards(), false, texts); }  // no commit
  EXPECT_FALSE(fs::exists(shards()));
  split_model(model(), shards());
  const auto before = files_below(shards());
  { const ShardWriter writer(*source, equal_partition(5, 3), {}, shards(), true, texts); }
  expect_files(files_below(shards()), before);
  fs::create_directory(folder_ / "taken");
  fs::create_directory(folder_ / "taken/tokenizer.json");
  expect_error([&] { split_model(model(), folder_ / "taken", 2, true); }, ExitCode::kCantCreate,
               {"taken/tokenizer.json"});
  EXPECT_EQ(file_names(folder_ / "taken"), std::set<std::string>{"tokenizer.json"});
}

TEST_F(TextFilesTest, GetTheirNamesBeforeTheShards) {
  fs::create_directories(shards() / shard::file_name(0, 2));  // a folder, over which no file can be renamed
  expect_error([&] { split_model(model(), shards(), 2, true); }, ExitCode::kIo, {shard::file_name(0, 2)});
  expect_files(texts_below(shards()), small_texts());
}

TEST_F(TextFilesTest, MergeReplacesOthersOnlyWithForce) {
  split_model(model(), shards());
  fs::create_directory(folder_ / "out");
  write_bytes(folder_ / "out/tokenizer.json", "mine");
  expect_error([&] { merge(shards(), folder_ / "out/m.bin"); }, ExitCode::kCantCreate,
               {"out/tokenizer.json", "--force"});
  EXPECT_EQ(file_names(folder_ / "out"), std::set<std::string>{"tokenizer.json"});
  merge(shards(), folder_ / "out/m.bin", true);
  fs::remove(folder_ / "out/m.bin");
  expect_files(texts_below(folder_ / "out"), small_texts());
  merge(shards(), folder_ / "out/m.bin");  // the same files may stay
}

TEST_F(TextFilesTest, VerifyAndMergeCompareChecksums) {
  split_model(model(), shards());
  for (const bool untrusted : {false, true}) verify(shards(), untrusted);
  for (const auto& [name, content] : small_texts()) {
    SCOPED_TRACE(name);
    std::string changed = content;
    changed.back() ^= 1;
    write_bytes(shards() / name, changed);
    for (const bool untrusted : {false, true})
      expect_error([&] { verify(shards(), untrusted); }, ExitCode::kData, {name, checksum_of(changed)});
    expect_error([&] { merge(shards(), folder_ / "out"); }, ExitCode::kData, {name});
    expect_error([&] { split_model(shards(), folder_ / "out"); }, ExitCode::kData, {name});
    fs::remove(shards() / name);
    for (const bool untrusted : {false, true})
      expect_error([&] { verify(shards(), untrusted); }, ExitCode::kNoInput, {name, "missing"});
    write_bytes(shards() / name, content);
  }
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

}  // namespace
}  // namespace lfm2::test
