// Which names a job may give to its files, by the command line that names them.
#include "stage/job/named_files.h"

#include <gtest/gtest.h>

#include <fstream>

#include "support/shards.h"

namespace lfm2::test {
namespace {

namespace fs = std::filesystem;

class NamedFilesTest : public testing::Test {
 protected:
  NamedFilesTest() : working_(fs::current_path()) {
    fs::current_path(folder_.path());
    fs::create_directories("shards");
    fs::create_directories("other");
    for (const char* name : {"a.jsonl", "other/b.jsonl", "ref.bin", "shards/stage-00-of-01.h5"})
      std::ofstream(name) << "x";
    fs::create_symlink("a.jsonl", "link.jsonl");
    fs::create_hard_link("a.jsonl", "hard.jsonl");
    fs::create_directory_symlink(".", "here");
    fs::create_directory_symlink("shards", "more");
  }
  ~NamedFilesTest() override { fs::current_path(working_); }

  static ParsedCommandLine parse(std::vector<std::string> words) {
    words.insert(words.begin(), {"lfm2_stage", "--weights", "shards"});
    std::vector<const char*> arguments;
    for (const std::string& word : words) arguments.push_back(word.c_str());
    return parse_command_line(static_cast<int>(arguments.size()), arguments.data());
  }
  static void expect_refused(const std::vector<std::string>& words, const std::string& line) {
    const ParsedCommandLine parsed = parse(words);
    EXPECT_EQ(parsed.exit_code, 64) << parsed.text;
    EXPECT_EQ(parsed.text, "lfm2_stage: " + line + "\n");
  }
  // The two name one file, which at least one of them writes.
  static void expect_clash(const std::string& option, const std::string& file, const std::string& other,
                           const std::string& same) {
    expect_refused({option, file, other, same},
                   other + " " + same + ": is the file of " + option + " " + file + " too, expected a file of its own");
  }

  TemporaryFolder folder_;
  fs::path working_;
};

TEST_F(NamedFilesTest, OneFileForTwoOptionsIsRefused) {
  const std::vector<std::string> options{"--input", "--reference", "--output", "--report", "--trace"};
  for (size_t i = 0; i < options.size(); ++i)
    for (size_t j = std::max<size_t>(i + 1, 2); j < options.size(); ++j)
      expect_clash(options[i], "a.jsonl", options[j], "a.jsonl");
}

TEST_F(NamedFilesTest, WhateverItIsCalled) {
  for (const std::string& same :
       {std::string("./a.jsonl"), std::string("other/../a.jsonl"), (folder_ / "a.jsonl").string(),
        std::string("link.jsonl"), std::string("hard.jsonl"), std::string("here/a.jsonl")})
    expect_clash("--input", "a.jsonl", "--output", same);
  for (const std::string& same : {std::string("./new.h5"), std::string("no/../new.h5"), (folder_ / "new.h5").string(),
                                  std::string("here/here/new.h5")})
    expect_clash("--output", "new.h5", "--trace", same);
}

TEST_F(NamedFilesTest, WhatTheRunMakesItselfIsRefused) {
  for (const std::string made : {"o.bin.partial", "o.bin.new", "o.bin.journal", "o.bin.journal.1", "o.bin.journal.new",
                                 "o.bin.journal.12.new", "o.bin.stall.txt", "o.bin.stall.txt.node1"})
    for (const char* option : {"--input", "--reference", "--report", "--trace"}) {
      const ParsedCommandLine parsed = parse({"--output", "o.bin", option, "here/" + made});
      EXPECT_EQ(parsed.exit_code, 64);
      EXPECT_EQ(parsed.text.find("lfm2_stage: " + std::string(option) + " here/" + made + ": the run makes o.bin."), 0u)
          << made << " " << parsed.text;
    }
  fs::create_symlink("a.jsonl", "o.bin.partial");
  expect_refused({"--input", "a.jsonl", "--output", "o.bin"},
                 "--input a.jsonl: the run makes o.bin.partial itself, expected another name");
  expect_refused({"--report", "lfm2_stage.stall.txt"},
                 "--report lfm2_stage.stall.txt: the run makes lfm2_stage.stall.txt itself, expected another name");
}

TEST_F(NamedFilesTest, ShardsAreNotWritten) {
  for (const std::string output : {"shards/stage-00-of-01.h5", "shards/new.h5", "more/stage-00-of-01.h5",
                                   "other/../shards/./new.h5", "here/more/new.h5"})
    expect_refused({"--output", output},
                   "--output " + output + ": would be one of the shards of --weights shards, expected another folder");
  fs::create_hard_link("shards/stage-00-of-01.h5", "report.json");
  expect_refused({"--report", "report.json"},
                 "--report report.json: would be one of the shards of --weights shards, expected another folder");
}

TEST_F(NamedFilesTest, TextFilesAreNotWritten) {
  expect_refused(
      {"--report", "here/shards/generation_config.json"},
      "--report here/shards/generation_config.json: is the generation_config.json of shards, expected a file "
      "of its own");
  expect_refused({"--tokenizer", "other", "--trace", "other/tokenizer.json"},
                 "--trace other/tokenizer.json: is the tokenizer.json of other, expected a file of its own");
}

TEST_F(NamedFilesTest, OtherNamesAreFine) {
  const std::vector<std::vector<std::string>> fine{
      {"--input", "a.jsonl", "--output", "other/a.jsonl", "--report", "r.json", "--trace", "t.json"},
      {"--input", "a.jsonl", "--reference", "a.jsonl"},  // one .h5 may hold both
      {"--input", "o.bin.new.jsonl", "--output", "o.bin"},
      {"--input", "o.bin.journals", "--output", "o.bin"},
      {"--output", "o.bin", "--report", "o.bin.json", "--trace", "lfm2_stage.stall.txt"},
      {"--output", "shards/o.bin", "--report", "shards/r.json", "--input", "shards/in.h5"},
      {"--generation-config", "shards/generation_config.json", "--report", "other/generation_config.json"},
      {"--output", "lfm2_stage.bin"}};
  for (const std::vector<std::string>& words : fine) EXPECT_TRUE(parse(words).run) << parse(words).text;
}

}  // namespace
}  // namespace lfm2::test
