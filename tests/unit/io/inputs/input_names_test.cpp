// Several input files: which ones --input names, and that they read as one.
#include "stage/io/inputs/input_names.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/thread_pool.h"
#include "openai/request_line.h"
#include "stage/io/inputs/input_file.h"
#include "stage/io/inputs/line_samples.h"
#include "stage/io/lines/line_reader.h"
#include "support/shards.h"
#include "support/weights_support.h"

namespace lfm2::test {
namespace {

using Paths = std::vector<std::filesystem::path>;
constexpr InputLimits kFew{.vocab = 100, .max_positions = 8, .max_samples = 0};

class InputNamesTest : public testing::Test {
 protected:
  void make(const std::string& name, const std::string& content = "") const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
  }
  // Without their folder.
  std::vector<std::string> names(const Paths& given) const {
    Paths in_folder;
    for (const std::filesystem::path& name : given) in_folder.push_back(name == "-" ? name : folder_ / name);
    std::vector<std::string> names;
    for (const std::filesystem::path& input : named_inputs(in_folder)) names.push_back(input.filename());
    return names;
  }
  void make_bin(const std::string& name, int32_t samples, const std::vector<int32_t>& ids) const {
    std::vector<int32_t> words{samples, samples == 0 ? 0 : static_cast<int32_t>(ids.size()) / samples};
    words.insert(words.end(), ids.begin(), ids.end());
    make(name, std::string(reinterpret_cast<const char*>(words.data()), words.size() * sizeof(int32_t)));
  }
  Samples read_lines_of(const Paths& names, bool continues = false, int64_t max_samples = 0) const {
    LineReader reader(paths(names));
    ThreadPool threads(2);
    const LineContext context{
        .vocab = kFew.vocab, .max_positions = kFew.max_positions, .text_error = "no text", .continues = continues};
    return read_lines(reader, context, max_samples, threads);
  }
  Paths paths(const Paths& names) const {
    Paths paths;
    for (const std::filesystem::path& name : names) paths.push_back(folder_ / name);
    return paths;
  }
  TemporaryFolder folder_;
};

TEST_F(InputNamesTest, PatternsInTheOrderGiven) {
  for (const char* name : {"p-2.jsonl", "p-10.jsonl", "p-Z.jsonl", "p-a.jsonl", "q.jsonl.gz", "[x].jsonl", "x.jsonl"})
    make(name);
  using Names = std::vector<std::string>;
  EXPECT_EQ(names({"p-*.jsonl"}), (Names{"p-10.jsonl", "p-2.jsonl", "p-Z.jsonl", "p-a.jsonl"}));
  EXPECT_EQ(names({"q.*", "p-?.jsonl"}), (Names{"q.jsonl.gz", "p-2.jsonl", "p-Z.jsonl", "p-a.jsonl"}));
  EXPECT_EQ(names({"p-2.jsonl", "p-[12]*"}), (Names{"p-2.jsonl", "p-10.jsonl", "p-2.jsonl"})) << "twice, as cat does";
  EXPECT_EQ(names({"[x].jsonl"}), Names{"[x].jsonl"}) << "a file of this very name";
  EXPECT_EQ(names({"none-*.bin"}), Names{"none-*.bin"}) << "for a host that has the files";
  EXPECT_EQ(names({"-"}), Names{"-"});
  EXPECT_TRUE(named_inputs({}).empty());
}

TEST_F(InputNamesTest, RefusedNames) {
  make("a.jsonl");
  make("a.txt");
  const auto refused = [&](const Paths& given, const std::vector<std::string>& reasons) {
    expect_error([&] { names(given); }, ExitCode::kUsage, reasons);
  };
  refused({"a.jsonl", "a.txt"}, {"--input", "a.txt beside", "a.jsonl", "one form"});
  refused({"a.*"}, {"a.txt beside", "one form"});
  refused({"b.bin", "b.npy"}, {"b.npy beside", "one form"});
  refused({"a.jsonl", "-"}, {"--input - beside other files"});
  refused({"-", "a.jsonl"}, {"--input - beside other files"});
  refused({"-", "-"}, {"--input - beside other files"});
  const auto missing = [&](const std::filesystem::path& name) {
    expect_error([&] { expect_inputs(named_inputs({folder_ / name})); }, ExitCode::kNoInput,
                 {"--input", name.string(), "no file has such a name"});
  };
  missing("none-*.jsonl");
  missing("none/*.jsonl");
  expect_inputs(paths({"a.jsonl", "missing.jsonl"}));  // the reader says which file is missing
  expect_error([&] { LineReader reader(paths({"a.jsonl", "missing.jsonl"})); }, ExitCode::kNoInput, {"missing.jsonl"});
}

TEST_F(InputNamesTest, LinesOfSeveralFiles) {
  make("a.jsonl", "\xef\xbb\xbf{\"input_ids\": [1, 2]}\n\n{\"input_ids\": [3], \"id\": \"x\"}");
  make("empty.jsonl");
  make("b.jsonl", "\xef\xbb\xbf{\"input_ids\": [4, 5, 6]}\n");
  const Samples samples = read_lines_of({"a.jsonl", "empty.jsonl", "b.jsonl", "a.jsonl"});
  EXPECT_EQ(samples.ids, (TokenIds{1, 2, 3, 4, 5, 6, 1, 2, 3}));
  EXPECT_EQ(samples.offsets, (SampleOffsets{0, 2, 3, 6, 8, 9}));
  EXPECT_EQ(samples.names, (SampleNames{"", "\"x\"", "", "", "\"x\""}));
  EXPECT_EQ(samples.where(1, ""), (folder_ / "a.jsonl").string() + ": sample 1");
  EXPECT_EQ(samples.where(2, ""), (folder_ / "b.jsonl").string() + ": sample 0");
  EXPECT_EQ(samples.where(4, ""), (folder_ / "a.jsonl").string() + ": sample 1");
  EXPECT_EQ(read_lines_of({"a.jsonl", "b.jsonl"}, false, 3).count(), 3);
  EXPECT_EQ(read_lines_of({"a.jsonl", "b.jsonl"}, false, 1).count(), 1);
  make("bad.jsonl", "\n\n{\"input_ids\": [1]}\n{\"input_ids\": [100]}\n");
  expect_error(
      [&] {
        read_lines_of({"a.jsonl", "bad.jsonl"});
      },
      ExitCode::kData, {"bad.jsonl: line 4: \"input_ids\" is 100"});
  expect_error(
      [&] {
        read_lines_of({"empty.jsonl", "empty.jsonl"});
      },
      ExitCode::kData, {"empty.jsonl and 1 more files: no samples"});
}

// A line that is cut between two files is two bad lines, and the same lines cut otherwise are another input, because
// answers to refused lines name file and line.
TEST_F(InputNamesTest, FilesAreNotGlued) {
  const std::string line = R"({"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": [1]}})";
  make("a.jsonl", line + "\n" + line + "\n");
  make("b.jsonl", "\n{}");
  const Samples samples = read_lines_of({"a.jsonl", "b.jsonl"}, true);
  ASSERT_EQ(samples.errors.size(), 1u);
  EXPECT_EQ(samples.errors.text(0).substr(0, 16), "b.jsonl: line 2:");
  EXPECT_EQ(read_lines_of({"a.jsonl", "b.jsonl"}, true).source, samples.source);
  make("a.jsonl", line + "\n" + line + "\n\n");
  make("b.jsonl", "{}");
  EXPECT_NE(read_lines_of({"a.jsonl", "b.jsonl"}, true).source, samples.source);
  const std::string both = names_text(paths({"a.jsonl", "b.jsonl"}));
  EXPECT_EQ(both.substr(0, 27), "2 files, a.jsonl to b.jsonl");
  EXPECT_NE(both, names_text(paths({"b.jsonl", "a.jsonl"})));
}

TEST_F(InputNamesTest, ArraysOfSeveralFiles) {
  make_bin("a.bin", 2, {1, 2, 3, 4});
  make_bin("b.bin", 1, {5, 6, 7});
  make_bin("none.bin", 0, {});
  const Samples samples = read_samples(paths({"none.bin", "a.bin", "none.bin", "b.bin"}), kFew);
  EXPECT_EQ(samples.ids, (TokenIds{1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(samples.offsets, (SampleOffsets{0, 2, 4, 7}));
  EXPECT_EQ(samples.where(2, ""), (folder_ / "b.bin").string() + ": sample 0");
  EXPECT_EQ(read_samples(paths({"a.bin", "b.bin"}), {100, 8, 2}).offsets, (SampleOffsets{0, 2, 4}));
  EXPECT_EQ(read_samples(paths({"b.bin", "a.bin"}), {100, 8, 2}).offsets, (SampleOffsets{0, 3, 5}));
  expect_error([&] { read_samples(paths({"none.bin", "none.bin"}), kFew); }, ExitCode::kData, {"no samples"});
  expect_error([&] { read_samples(paths({"a.bin", "missing.bin"}), kFew); }, ExitCode::kNoInput, {"missing.bin"});
  make_bin("bad.bin", 2, {1, 2, 3, 400});
  expect_error(
      [&] {
        read_samples(paths({"a.bin", "bad.bin"}), kFew);
      },
      ExitCode::kData, {"bad.bin: sample 1: token 1 is 400"});
}

}  // namespace
}  // namespace lfm2::test
