// What a job writes: the three forms of output.
#include "stage/io/output_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/thread_pool.h"
#include "stage/hdf5/h5.h"
#include "stage/hdf5/h5_scan.h"
#include "stage/io/output_place.h"
#include "support/shards.h"
#include "support/weights_support.h"

namespace lfm2::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class OutputFileTest : public testing::Test {
 protected:
  OutputJob job(ResultKind kind) const {
    return {.kind = kind,
            .vocab = 3,
            .size = offsets_.job_size(),
            .offsets = &offsets_,
            .names = &names_,
            .facts = {"lfm2", "fp32", "00", "test"}};
  }
  // Hands the rows out as a run does; the counter tells the file what is finished.
  void hand_out(OutputFile& file, ResultKind kind, const ResultRows& rows) const {
    ResultHash hash;
    SampleCounter counter(kind.positions, offsets_, hash, &file);
    for (ResultConsumer* consumer : std::initializer_list<ResultConsumer*>{&hash, &file, &counter})
      consumer->consume(rows);
  }
  bool folder_is_empty() const { return std::filesystem::is_empty(folder_.path()); }

  TemporaryFolder folder_;
  SampleOffsets offsets_{0, 2, 3};
  SampleNames names_;
  std::vector<float> logits_{1, 2.5f, -3, 4, 5, 0.1f, 7, kInfinity, 9};
};

TEST_F(OutputFileTest, BinIsWrittenInPiecesAndAppearsWhole) {
  auto file = create_output(folder_ / "o.bin", job({}));
  const std::span<const float> logits = logits_;
  file->consume({.first = 1, .count = 1, .logits = logits.subspan(3, 3)});
  file->consume({.first = 0, .count = 1, .logits = logits.subspan(0, 3)});
  EXPECT_FALSE(std::filesystem::exists(folder_ / "o.bin"));
  file->commit();
  const std::string text = read_bytes(folder_ / "o.bin");
  ASSERT_EQ(text.size(), 8 + 6 * sizeof(float));
  std::array<int32_t, 2> header{};
  std::memcpy(header.data(), text.data(), 8);
  EXPECT_EQ(header, (std::array<int32_t, 2>{2, 3}));
  EXPECT_EQ(std::memcmp(text.data() + 8, logits_.data(), 24), 0);
}

// By several threads that hash them, the same bytes as by consume().
TEST_F(OutputFileTest, RowsAreWrittenOneByOneBesideTheirHash) {
  constexpr int64_t kRows = 37, kVocab = 1003;
  std::vector<float> logits(kRows * kVocab);
  std::iota(logits.begin(), logits.end(), 0.5f);
  const ResultRows all{.first = 0, .count = kRows, .logits = logits};
  for (const std::string ending : {".bin", ".h5"}) {
    const SampleOffsets offsets = SampleOffsets::equally_long(kRows, 1);
    OutputJob job = this->job({});
    job.vocab = kVocab;
    job.size = offsets.job_size();
    job.offsets = &offsets;
    auto one = create_output(folder_ / ("one" + ending), job), other = create_output(folder_ / ("other" + ending), job);
    if (one->by_rows() == nullptr) GTEST_SKIP() << "no mappings here";
    ThreadPool threads(3);
    ResultHash beside(&threads, {one->by_rows()}), alone;
    beside.consume(some_rows(all, 9, kRows - 9, 9));
    beside.consume(some_rows(all, 0, 9, 0));
    alone.consume(all);
    other->consume(all);
    one->commit();
    other->commit();
    EXPECT_TRUE(read_bytes(folder_ / ("one" + ending)) == read_bytes(folder_ / ("other" + ending))) << ending;
    EXPECT_EQ(beside.hex(), alone.hex());
  }
  EXPECT_EQ(create_output(folder_ / "lines.jsonl", job({}))->by_rows(), nullptr);
}

TEST_F(OutputFileTest, NothingIsLeftWithoutCommit) {
  for (const char* name : {"o.bin", "o.h5", "o.jsonl"}) {
    create_output(folder_ / name, job({}))
        ->consume({.first = 0, .count = 1, .logits = std::span<const float>(logits_).subspan(0, 3)});
    EXPECT_TRUE(folder_is_empty()) << name;
  }
}

TEST_F(OutputFileTest, JsonlOfAllPositions) {
  names_ = {"\"first\"", ""};
  auto file = create_output(folder_ / "o.jsonl", job({.positions = Positions::kAll}));
  hand_out(*file, {.positions = Positions::kAll}, {.first = 0, .count = 3, .logits = logits_});
  file->commit();
  EXPECT_EQ(read_bytes(folder_ / "o.jsonl"),
            "{\"id\":\"first\",\"logits\":[[1,2.5,-3],[4,5,0.1]]}\n{\"id\":1,\"logits\":[[7,null,9]]}\n");
}

TEST_F(OutputFileTest, JsonlOfTopLogProbs) {
  const std::vector<int32_t> ids{2, 0, 1, 2};
  const std::vector<float> log_probs{-0.5f, -1, -0.25f, -2};
  auto file = create_output(folder_ / "o.jsonl", job({.top_k = 2}));
  for (int pass = 0; pass < 2; ++pass) {  // a benchmark hands the rows out again
    file->start_over();
    hand_out(*file, {.top_k = 2}, {.first = 0, .count = 2, .top_ids = ids, .log_probs = log_probs});
  }
  file->commit();
  EXPECT_EQ(read_bytes(folder_ / "o.jsonl"),
            "{\"id\":0,\"top_ids\":[2,0],\"top_logprobs\":[-0.5,-1]}\n{\"id\":1,\"top_ids\":[1,2],\"top_logprobs\":[-0."
            "25,-2]}\n");
}

TEST_F(OutputFileTest, H5HoldsLogitsOffsetsAndFacts) {
  auto file = create_output(folder_ / "o.h5", job({.positions = Positions::kAll}));
  file->consume({.first = 0, .count = 3, .logits = logits_});
  file->commit();
  const CheckedFile written(folder_ / "o.h5");
  const h5::Scan scan = h5::scan(written);
  EXPECT_EQ(scan.datasets.at("logits").dims, (std::vector<uint64_t>{3, 3}));
  EXPECT_EQ(h5::text_of(scan.attributes, "dtype", "o.h5"), "fp32");
  EXPECT_FALSE(scan.attributes.contains("cache_dtype"));
  const h5::File read = h5::File::open(written);
  std::vector<int64_t> offsets(3);
  read.read_rows("offsets", 0, 3, H5T_NATIVE_INT64, offsets.data());
  EXPECT_EQ(SampleOffsets(offsets), offsets_);
  std::vector<float> rows(6);
  read.read_rows("logits", 1, 2, H5T_NATIVE_FLOAT, rows.data());
  EXPECT_EQ(std::memcmp(rows.data(), logits_.data() + 3, 24), 0);
}

TEST_F(OutputFileTest, H5NamesAnFp8Cache) {
  OutputJob rounded = job({.positions = Positions::kAll});
  rounded.facts.cache_dtype = "fp8";
  auto file = create_output(folder_ / "o.h5", rounded);
  file->consume({.first = 0, .count = 3, .logits = logits_});
  file->commit();
  EXPECT_EQ(h5::text_of(h5::scan(CheckedFile(folder_ / "o.h5")).attributes, "cache_dtype", "o.h5"), "fp8");
}

TEST_F(OutputFileTest, ImpossiblePlacesAndForms) {
  const auto code_of = [](const std::function<void()>& f) {
    try {
      f();
    } catch (const Error& error) {
      return error.code();
    }
    return ExitCode::kOk;
  };
  EXPECT_EQ(code_of([&] { check_output_place(folder_ / "no/such/o.bin"); }), ExitCode::kCantCreate);
  EXPECT_EQ(code_of([&] { check_output_place(folder_.path()); }), ExitCode::kCantCreate);
  EXPECT_EQ(code_of([&] { check_output_place(folder_ / "fine.bin"); }), ExitCode::kOk);
  EXPECT_EQ(code_of([&] { check_output_place(folder_ / fmt::format("{}.bin", std::string(239, 'b'))); }),
            ExitCode::kOk);
  EXPECT_EQ(code_of([&] { check_output_place(folder_ / fmt::format("{}.bin", std::string(240, 'b'))); }),
            ExitCode::kCantCreate);
  EXPECT_TRUE(folder_is_empty());
  EXPECT_EQ(code_of([] { check_output_form("o.txt", {}); }), ExitCode::kUsage);
  EXPECT_EQ(code_of([] { check_output_form("o.bin", {.positions = Positions::kAll}); }), ExitCode::kUsage);
  EXPECT_EQ(code_of([] { check_output_form("o.bin", {.top_k = 3}); }), ExitCode::kUsage);
  EXPECT_EQ(code_of([] { check_output_form("o.h5", {.positions = Positions::kNone}); }), ExitCode::kUsage);
  EXPECT_EQ(code_of([] { check_output_form("o.h5", {.positions = Positions::kAll, .top_k = 3}); }), ExitCode::kOk);
}

// NAME.partial could be made, its journal cannot.
TEST_F(OutputFileTest, NothingIsLeftOfAStartThatFails) {
  EXPECT_THROW(create_output(folder_ / fmt::format("{}.bin", std::string(240, 'b')), job({})), Error);
  EXPECT_TRUE(folder_is_empty());
}

// In a folder with the sticky bit.
TEST_F(OutputFileTest, FilesOfOtherUsersAreNotReplaced) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become other users";
  constexpr uid_t kUs = 3001, kOther = 3002, kThird = 3003;
  const auto place = folder_ / "sticky";
  std::filesystem::create_directory(place);
  write_bytes(place / "o.bin", "");
  ASSERT_EQ(::chmod(folder_.path().c_str(), 0755) | ::chmod(place.c_str(), 01777), 0);
  struct Case {
    uid_t folder, file;
    bool refused;
  };
  for (const Case& each :
       {Case{0, kOther, true}, Case{kThird, kOther, true}, Case{kUs, kOther, false}, Case{0, kUs, false}}) {
    ASSERT_EQ(::chown(place.c_str(), each.folder, 0) | ::chown((place / "o.bin").c_str(), each.file, 0), 0);
    ASSERT_EQ(::seteuid(kUs), 0);
    std::string problem;
    try {
      check_output_place(place / "o.bin");
    } catch (const Error& error) {
      problem = error.what();
      EXPECT_EQ(error.code(), ExitCode::kCantCreate);
    }
    ASSERT_EQ(::seteuid(0), 0);
    EXPECT_EQ(problem.find("belongs to user 3002") != std::string::npos, each.refused) << problem;
    EXPECT_EQ(problem.empty(), !each.refused);
  }
}

}  // namespace
}  // namespace lfm2::test
