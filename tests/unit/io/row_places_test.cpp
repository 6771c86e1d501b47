// Several writers of one output: whoever joins writes only into the maker's file, or sends what it has. Files of these
// names that belong to somebody else stay.
#include "stage/io/row_places.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "support/weights_support.h"

namespace lfm2::test {
namespace {

class RowPlacesTest : public testing::Test {
 protected:
  OutputJob job(ResultKind kind, int64_t samples, int64_t vocab) {
    offsets_ = SampleOffsets::equally_long(samples, 1);
    return {.kind = kind,
            .vocab = vocab,
            .size = offsets_.job_size(),
            .offsets = &offsets_,
            .names = &names_,
            .facts = {"lfm2", "fp32", "00", "test"},
            .threads = nullptr,
            .identity = "{}"};
  }

  TemporaryFolder folder_;
  SampleOffsets offsets_;
  SampleNames names_;
};

// A rank that finds no such file, or a copy of it, sends its rows to the maker. On the maker's host it writes them.
TEST_F(RowPlacesTest, WhoSeesAnotherFileSendsItsRows) {
  std::vector<float> values(9 * 7);
  std::iota(values.begin(), values.end(), 1.0f);
  const std::vector<int32_t> ids(9 * 7, 5);
  for (const char* name : {"o.bin", "o.h5", "o.jsonl"})
    for (const char* place : {"here", "a copy", "nowhere"}) {
      SCOPED_TRACE(std::string(name) + " " + place);
      const bool is_h5 = std::string(name) == "o.h5", lines = std::string(name) == "o.jsonl",
                 here = std::string(place) == "here";
      OutputJob job = this->job(is_h5 ? ResultKind{.top_k = 7} : ResultKind{}, 9, 7);
      const auto rows = [&](int64_t first, int64_t count) {
        const ResultRows all = is_h5 ? ResultRows{.count = 9, .top_ids = ids, .log_probs = values}
                                     : ResultRows{.count = 9, .logits = values};
        return some_rows(all, first, count, first);
      };
      const auto output = folder_ / name, other = folder_ / "other" / name;
      std::filesystem::create_directory(other.parent_path());
      auto alone = create_output(output, job);
      alone->consume(rows(0, 9));
      alone->finished(0, 9, {});
      alone->commit();
      const std::string expected = read_bytes(output);
      std::filesystem::remove(output);
      auto first = create_output(output, job);
      job.replica = 1;
      std::vector<std::vector<int32_t>> sent;
      job.send = [&](const RemotePart& part) { sent.push_back(to_words(part)); };
      const std::string copy = read_bytes(partial_path(output));
      if (std::string(place) == "a copy") write_bytes(partial_path(other), copy);
      auto second = join_output(here ? output : other, first->shared(), job);
      second->consume(rows(2, 4));
      second->finished(2, 4, {});
      EXPECT_EQ(sent.size(), lines ? 1u : here ? 0u : is_h5 ? 3u : 2u);
      if (std::string(place) == "a copy") {
        EXPECT_EQ(read_bytes(partial_path(other)), copy);
      }
      for (const std::vector<int32_t>& words : sent) first->receive(from_words<RemotePart>(words));
      for (const auto& [sample, count] : {std::pair<int64_t, int64_t>{6, 3}, {0, 2}}) {
        first->consume(rows(sample, count));
        first->finished(sample, count, {});
      }
      first->keep();
      std::optional<JournalContent> journal = read_journals(output, 9);
      ASSERT_TRUE(journal);
      leave_out_impossible(*journal, 9);
      ASSERT_EQ(journal->records.size(), 3u);
      EXPECT_EQ(journal->records[1].first, 2);
      EXPECT_EQ(journal->records[1].count, 4);
      second->commit();
      first->commit();
      EXPECT_TRUE(read_bytes(output) == expected);
      std::filesystem::remove(output);
      std::filesystem::remove_all(other.parent_path());
    }
}

// Several ranks send at the same time, so the pieces of one come between those of another.
TEST_F(RowPlacesTest, LargePartsComeInPieces) {
  constexpr int64_t kVocab = 300'000;
  const std::vector<float> values(static_cast<size_t>(4 * kVocab), 0.123456f);
  const auto rows = [&](int64_t first, int64_t count) {
    return some_rows({.count = 4, .logits = values}, first, count, first);
  };
  for (const char* name : {"o.bin", "o.jsonl"}) {
    SCOPED_TRACE(name);
    OutputJob job = this->job({}, 4, kVocab);
    const auto output = folder_ / name;
    auto alone = create_output(output, job);
    alone->consume(rows(0, 4));
    alone->finished(0, 4, {});
    alone->commit();
    const std::string expected = read_bytes(output);
    std::filesystem::remove(output);
    auto first = create_output(output, job);
    std::vector<std::vector<RemotePart>> sent(2);
    for (const int64_t from : {0, 1}) {
      job.send = [&](const RemotePart& part) { sent[static_cast<size_t>(from)].push_back(part); };
      auto other = join_output(folder_ / "elsewhere" / name, first->shared(), job);
      other->consume(rows(2 * from, 2));
      other->finished(2 * from, 2, {});
    }
    ASSERT_EQ(sent[0].size(), sent[1].size());
    EXPECT_GT(sent[0].size(), 2u);
    for (size_t i = 0; i < sent[0].size(); ++i)
      for (const int from : {1, 0}) {
        EXPECT_LE(sent[static_cast<size_t>(from)][i].bytes.size(), RemotePart::kMaxBytes);
        first->receive(sent[static_cast<size_t>(from)][i]);
      }
    first->keep();
    std::optional<JournalContent> journal = read_journals(output, 4);
    ASSERT_TRUE(journal);
    EXPECT_EQ(journal->records.size(), 2u);
    if (std::string(name) == "o.jsonl") {  // what the journal says of the bytes holds
      first.reset();
      std::optional<Unfinished> begun = find_unfinished(output, 4);
      ASSERT_TRUE(begun);
      first = resume_output(output, job, *begun);
      EXPECT_EQ(begun->content.records.size(), 2u);
    }
    first->commit();
    EXPECT_TRUE(read_bytes(output) == expected);
    std::filesystem::remove(output);
  }
}

TEST_F(RowPlacesTest, FilesOfOthersStay) {
  for (const char* name : {"o.bin", "o.h5", "o.jsonl"})
    for (const char* ending : {".partial", ".new", ".journal", ".journal.new"}) {
      SCOPED_TRACE(std::string(name) + ending);
      const auto output = folder_ / name, theirs = folder_ / (std::string(name) + ending);
      write_bytes(theirs, "somebody's only copy");
      expect_error([&] { create_output(output, job({}, 3, 7)); }, ExitCode::kCantCreate, {theirs.filename()});
      EXPECT_EQ(read_bytes(theirs), "somebody's only copy");
      std::filesystem::remove(theirs);
      EXPECT_TRUE(std::filesystem::is_empty(folder_.path())) << "something else was left";
    }
}

// The files of a killed run belong to the next run, whenever it was killed.
TEST_F(RowPlacesTest, WhatARunLeftIsTakenOver) {
  for (const char* name : {"o.bin", "o.h5", "o.jsonl"}) {
    SCOPED_TRACE(name);
    const auto output = folder_ / name;
    write_bytes(partial_path(output), "");  // killed before its journal was written
    create_output(output, job({}, 3, 7));
    begin_partial(output);  // killed after its journal was written; the lock went with the process
    write_bytes(partial_path(output), "half");
    write_bytes(pending_path(output), "half");
    auto file = create_output(output, job({}, 3, 7));
    const std::vector<float> rows(3 * 7, 1.0f);
    ResultHash hash;
    SampleCounter counter(Positions::kLast, offsets_, hash, file.get());
    for (ResultConsumer* consumer : std::initializer_list<ResultConsumer*>{&hash, file.get(), &counter})
      consumer->consume({.first = 0, .count = 3, .logits = rows});
    file->commit();
    EXPECT_TRUE(std::filesystem::exists(output));
    std::filesystem::remove(output);
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  }
}

}  // namespace
}  // namespace lfm2::test
