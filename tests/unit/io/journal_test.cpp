// The journal: wherever it is damaged, it says less than was finished, never more.
#include "stage/io/journal.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/json/json.h"
#include "stage/io/partial_file.h"
#include "support/shards.h"
#include "support/weights_support.h"

namespace lfm2::test {
namespace {

bool same(const JournalRecord& a, const JournalRecord& b) {
  return a.first == b.first && a.count == b.count && a.offset == b.offset && a.bytes == b.bytes &&
         a.results == b.results && a.data_hash == b.data_hash;
}

class JournalTest : public testing::Test {
 protected:
  JournalTest() {
    Journal journal(journal_path(output_), {.id = 77, .text = "{\"job\":{\"input\":\"x\"}}", .records = {}});
    for (int64_t i = 0; i < 5; ++i) {
      records_.push_back({.first = 3 * i,
                          .count = 2,
                          .offset = static_cast<uint64_t>(100 * i),
                          .bytes = 100,
                          .results = HashSum::from_words({static_cast<uint64_t>(i), 9}),
                          .data_hash = 5});
      journal.append(records_.back());
    }
    text_ = read_bytes(journal_path(output_));
  }
  // Returns how many records are read from `text`; each must be one that was written.
  size_t accepted(const std::string& text) {
    write_bytes(journal_path(output_), text);
    try {
      const auto content = read_journals(output_, 15);
      if (!content) return 0;
      EXPECT_EQ(content->text, "{\"job\":{\"input\":\"x\"}}");
      for (const JournalRecord& record : content->records)
        EXPECT_TRUE(std::any_of(records_.begin(), records_.end(), [&](const auto& r) { return same(r, record); }));
      return content->records.size();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kCantCreate);
      return 0;
    }
  }

  TemporaryFolder folder_;
  std::filesystem::path output_ = folder_ / "o.bin";
  std::vector<JournalRecord> records_;
  std::string text_;
};

TEST_F(JournalTest, ReadsWhatWasWritten) {
  EXPECT_EQ(accepted(text_), 5u);
  EXPECT_EQ(read_journals(output_, 15)->id, 77u);
  auto content = read_journals(output_, 15);
  leave_out_impossible(*content, 13);  // the job has no samples beyond these
  EXPECT_EQ(content->records.size(), 4u);
  EXPECT_FALSE(read_journals(folder_ / "other.bin", 15));
}

TEST_F(JournalTest, CutOffAnywhereSaysLess) {
  const size_t header = text_.size() - 5 * 64;
  for (size_t size = 0; size <= text_.size(); ++size)
    EXPECT_EQ(accepted(text_.substr(0, size)), size < header ? 0 : (size - header) / 64) << size;
}

TEST_F(JournalTest, EveryFlippedBitCostsOneRecordOrAll) {
  const size_t header = text_.size() - 5 * 64;
  for (size_t at = 0; at < text_.size(); ++at)
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = text_;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << bit));
      EXPECT_EQ(accepted(flipped), at < header ? 0u : 4u) << "byte " << at << ", bit " << bit;
    }
}

TEST_F(JournalTest, RecordsOutOfPlaceAreNone) {
  const size_t header = text_.size() - 5 * 64;
  EXPECT_EQ(accepted(text_ + text_.substr(header)), 5u);  // the first record is repeated behind the others
  EXPECT_EQ(accepted(text_.substr(0, header) + text_.substr(header + 64)), 0u);  // the first record is missing
  EXPECT_EQ(accepted(text_.substr(0, header) + std::string(64, '\0') + text_.substr(header + 64)), 4u);
}

TEST_F(JournalTest, AFileOfAnotherKindIsNotTouched) {
  write_bytes(journal_path(output_), "my diary");
  EXPECT_THROW(read_journals(output_, 15), Error);
}

TEST_F(JournalTest, ReplicasAreReadAsOne) {
  const auto other = [&](int64_t replica, uint64_t id, int64_t first) {
    JournalRecord record;
    record.first = first;
    record.count = 1;
    Journal(journal_path(output_, replica), {.id = id, .text = "", .records = {record}});
  };
  other(1, 77, 11);
  other(2, 78, 14);   // written by another run
  other(13, 77, 12);  // overlaps with other records
  auto content = read_journals(output_, 15);
  EXPECT_EQ(content->records.size(), 7u);
  leave_out_impossible(*content, 15);
  EXPECT_EQ(content->records.size(), 6u);
  EXPECT_EQ(journal_paths(output_).size(), 4u);
  // The other journals also say what the job is.
  for (const std::string& first : {std::string(), text_.substr(0, 40)}) {
    std::filesystem::remove(journal_path(output_));
    if (!first.empty()) write_bytes(journal_path(output_), first);
    content = read_journals(output_, 15);
    ASSERT_TRUE(content);
    EXPECT_EQ(content->records.size(), 2u) << first.size();
  }
}

// The records are of a job with more samples, which is another job: nothing of it may be removed.
TEST_F(JournalTest, RecordsBeyondTheJobAreSeen) {
  write_bytes(partial_path(output_), "rows");
  const auto begun = find_unfinished(output_, 1);
  ASSERT_TRUE(begun);
  EXPECT_EQ(begun->content.records.size(), 1u);
}

// A journal whose size alone exceeds any memory.
TEST_F(JournalTest, ASparseJournalCostsNothing) {
  std::filesystem::resize_file(journal_path(output_), uint64_t{100} << 30);
  EXPECT_EQ(read_journals(output_, 15)->records.size(), 5u);
}

TEST_F(JournalTest, WhatTheJobIsMustBeAnObject) {
  const auto nested = std::string(520000, '[') + std::string(520000, ']');
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("{}"), nested, std::string("{\"job\":7}"),
        std::string("{\"job\":\"\xff\"}"), "{\"job\":" + nested + "}", std::string("{\"job\":{\"a\":1,\"a\":2}}")}) {
    Journal(journal_path(output_), {.id = 77, .text = text, .records = {}});
    try {
      job_of(*read_journals(output_, 15), journal_path(output_));
      ADD_FAILURE() << text.substr(0, 40);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kData);
      EXPECT_NE(std::string(error.what()).find("o.bin.journal"), std::string::npos) << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    }
  }
}

TEST_F(JournalTest, OnlyJournalsAreRemoved) {
  write_bytes(journal_path(output_, 20261121), "my diary");
  Journal(journal_path(output_, 1), {.id = 78, .text = "", .records = {}});
  remove_journals(output_, 77);
  EXPECT_EQ(journal_paths(output_), (std::vector{journal_path(output_, 1), journal_path(output_, 20261121)}));
  remove_journals(output_);
  EXPECT_EQ(read_bytes(journal_path(output_, 20261121)), "my diary");
  EXPECT_EQ(journal_paths(output_).size(), 1u);
}

TEST_F(JournalTest, NothingIsLeftOfOneThatCannotBeMade) {
  const auto place = journal_path(folder_ / "p.bin");
  std::filesystem::create_directories(place / "in the way");
  EXPECT_THROW(Journal(place, {.id = 1, .text = "", .records = {}}), Error);
  EXPECT_FALSE(std::filesystem::exists(place.string() + ".new"));
}

TEST_F(JournalTest, LinksAreNotFollowed) {
  write_bytes(folder_ / "precious", "words");
  for (const auto& name : {partial_path(folder_ / "p.bin"), std::filesystem::path(folder_ / "p.bin.journal.new")}) {
    std::filesystem::create_symlink(folder_ / "precious", name);
    EXPECT_THROW(begin_partial(folder_ / "p.bin"); Journal(folder_ / "p.bin.journal", {}), Error);
    EXPECT_EQ(read_bytes(folder_ / "precious"), "words");
    std::filesystem::remove(name);
  }
}

}  // namespace
}  // namespace lfm2::test
