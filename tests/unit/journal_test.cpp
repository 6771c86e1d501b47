// The journal and the partial file: damaged anywhere they say less than was finished, never more; and what another run
// goes on with becomes the same file.
#include "stage/journal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <random>

#include "kernels/error.h"
#include "stage/completions.h"
#include "stage/output_file.h"
#include "support/shards.h"

namespace lfm2::test {
namespace {

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

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
    text_ = read_text(journal_path(output_));
  }
  // Every record that is read is one that was written, whatever `text` is; returns how many.
  size_t accepted(const std::string& text) {
    write_text(journal_path(output_), text);
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
  EXPECT_EQ(read_journals(output_, 13)->records.size(), 4u);  // samples that the job does not have
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
  EXPECT_EQ(accepted(text_ + text_.substr(header)), 5u);                         // written again behind the others
  EXPECT_EQ(accepted(text_.substr(0, header) + text_.substr(header + 64)), 0u);  // the first one missing
  EXPECT_EQ(accepted(text_.substr(0, header) + std::string(64, '\0') + text_.substr(header + 64)), 4u);
}

TEST_F(JournalTest, AFileOfAnotherKindIsNotTouched) {
  write_text(journal_path(output_), "my diary");
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
  other(2, 78, 14);   // of another run
  other(13, 77, 12);  // overlaps
  EXPECT_EQ(read_journals(output_, 15)->records.size(), 6u);
  EXPECT_EQ(journal_paths(output_).size(), 4u);
}

class ResumedFileTest : public testing::Test {
 protected:
  OutputJob job(ResultKind kind) const {
    return {.kind = kind,
            .vocab = kVocab,
            .offsets = &offsets_,
            .names = &names_,
            .facts = {"lfm2", "fp32", "00", "test"},
            .threads = nullptr,
            .identity = "{}"};
  }
  int64_t rows_of(ResultKind kind, int64_t samples) const {
    return kind.positions == Positions::kAll ? offsets_[static_cast<size_t>(samples)] : samples;
  }
  // Rows of samples [first, first + count), as a run hands them out.
  void hand_out(OutputFile& file, ResultKind kind, int64_t first, int64_t count) {
    const int64_t begin = rows_of(kind, first), end = rows_of(kind, first + count);
    ResultRows rows{.first = begin, .count = end - begin, .logits = {}, .top_ids = {}, .top_log_probs = {}};
    const auto columns = static_cast<size_t>(kind.top_k > 0 ? kind.top_k : kVocab);
    const auto at = static_cast<size_t>(begin) * columns, size = static_cast<size_t>(end - begin) * columns;
    const std::span<const float> floats(floats_);
    if (kind.top_k > 0) {
      rows.top_ids = std::span<const int32_t>(ids_).subspan(at, size);
      rows.top_log_probs = floats.subspan(at, size);
    } else {
      rows.logits = floats.subspan(at, size);
    }
    ResultHash hash;
    SampleCounter counter(kind.positions, offsets_, hash, &file);
    for (ResultConsumer* consumer : std::initializer_list<ResultConsumer*>{&hash, &file, &counter})
      consumer->take(rows);
  }

  static constexpr int64_t kVocab = 7;
  ResumedFileTest() {
    std::mt19937 random(1);
    for (int64_t sample = 0; sample < 9; ++sample) offsets_.push_back(offsets_.back() + 1 + sample % 3);
    for (int i = 0; i < 40 * kVocab; ++i) {
      floats_.push_back(static_cast<float>(random() % 1000) / 8);
      ids_.push_back(static_cast<int32_t>(random() % 100));
    }
  }
  TemporaryFolder folder_;
  std::vector<int64_t> offsets_{0};
  std::vector<std::string> names_;
  std::vector<float> floats_;
  std::vector<int32_t> ids_;
};

TEST_F(ResumedFileTest, BecomesTheSameFileWhateverWasLost) {
  struct Form {
    const char* name;
    ResultKind kind;
  };
  for (const Form& form : {Form{"o.bin", {}}, Form{"o.h5", {}}, Form{"o.h5", {Positions::kAll, 2}},
                           Form{"o.jsonl", {Positions::kAll, 0}}, Form{"o.jsonl", {Positions::kLast, 3}}}) {
    SCOPED_TRACE(form.name);
    const auto output = folder_ / form.name;
    const OutputJob job = this->job(form.kind);
    {
      auto whole = create_output(output, job);
      hand_out(*whole, form.kind, 0, 9);
      whole->commit();
    }
    const std::string expected = read_text(output);
    std::filesystem::remove(output);
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
    for (const bool damaged : {false, true}) {
      if (damaged && output.extension() == ".h5") continue;  // its rows are at HDF5's places
      {
        auto part = create_output(output, job);
        hand_out(*part, form.kind, 4, 2);
        hand_out(*part, form.kind, 0, 3);
        hand_out(*part, form.kind, 7, 1);
      }
      if (damaged) {  // in sample 4
        std::string text = read_text(partial_path(output));
        char& byte = text[output.extension() == ".bin" ? 8 + 4 * kVocab * sizeof(float) : 5];
        byte = static_cast<char>(byte ^ 1);
        write_text(partial_path(output), text);
      }
      auto content = read_journals(output, 9);
      ASSERT_TRUE(content);
      EXPECT_EQ(content->records.size(), 3u);
      auto resumed = resume_output(output, job, *content);
      EXPECT_EQ(content->records.size(), damaged ? 2u : 3u);
      std::vector<bool> done(9);
      for (const JournalRecord& record : content->records)
        for (int64_t i = 0; i < record.count; ++i) done[static_cast<size_t>(record.first + i)] = true;
      for (int64_t sample = 0; sample < 9; ++sample)
        if (!done[static_cast<size_t>(sample)]) hand_out(*resumed, form.kind, sample, 1);
      EXPECT_FALSE(std::filesystem::exists(output));
      resumed->commit();
      EXPECT_EQ(read_text(output), expected);
      std::filesystem::remove(output);
      EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
    }
  }
}

TEST_F(ResumedFileTest, OneRunAtATime) {
  const auto first = create_output(folder_ / "o.jsonl", job({}));
  EXPECT_THROW(PartialFile::expect_unused(folder_ / "o.jsonl"), Error);
  EXPECT_THROW(create_output(folder_ / "o.jsonl", job({})), Error);
}

TEST_F(ResumedFileTest, CompletionsInAnyOrder) {
  const auto completion = [&](int64_t sample) {
    Completion one{.sample = sample, .token_ids = {}, .log_probs = {}, .top_ids = {}, .top_log_probs = {}};
    one.reason = sample % 2 == 0 ? FinishReason::kStop : FinishReason::kLength;
    for (int32_t token = 0; token <= sample; ++token) {
      one.token_ids.push_back(token);
      one.log_probs.push_back(-0.5f * static_cast<float>(token));
      one.top_ids.push_back(token);
      one.top_log_probs.push_back(-0.25f);
    }
    return one;
  };
  for (const char* name : {"c.jsonl", "c.h5"}) {
    const OutputJob job = this->job({.top_k = 1});
    {
      auto whole = create_completion_file(folder_ / name, job);
      for (int64_t sample = 0; sample < 9; ++sample) whole->take(completion(sample));
      whole->commit();
    }
    const std::string expected = read_text(folder_ / name);
    std::filesystem::remove(folder_ / name);
    {
      auto part = create_completion_file(folder_ / name, job);
      for (int64_t sample : {8, 2, 5}) part->take(completion(sample));
    }
    write_text(partial_path(folder_ / name), read_text(partial_path(folder_ / name)) + "half a li");
    auto content = read_journals(folder_ / name, 9);
    ASSERT_TRUE(content);
    auto resumed = resume_completion_file(folder_ / name, job, *content);
    EXPECT_EQ(content->records.size(), 3u);
    for (int64_t sample : {7, 6, 4, 3, 1, 0}) resumed->take(completion(sample));
    resumed->commit();
    EXPECT_EQ(read_text(folder_ / name), expected);
    std::filesystem::remove(folder_ / name);
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  }
}

TEST(RenumberedRowsTest, SplitsWhereSamplesAreLeftOut) {
  struct Collector : ResultConsumer {
    std::vector<std::pair<int64_t, int64_t>> pieces;
    std::vector<float> values;
    void take(const ResultRows& rows) override {
      pieces.emplace_back(rows.first, rows.count);
      values.insert(values.end(), rows.logits.begin(), rows.logits.end());
    }
  } collector;
  const std::vector<int64_t> all{0, 2, 3, 6, 7}, left{0, 1, 4, 5}, numbers{1, 2, 3};
  const std::vector<float> logits{1, 2, 3, 4, 5};
  RenumberedRows rows(Positions::kAll, left, numbers, all, {&collector});
  rows.take({.first = 0, .count = 5, .logits = logits, .top_ids = {}, .top_log_probs = {}});
  EXPECT_EQ(collector.pieces, (std::vector<std::pair<int64_t, int64_t>>{{2, 5}}));
  const std::vector<int64_t> ends{0, 2, 3}, some{0, 3};
  collector.pieces.clear();
  RenumberedRows others(Positions::kAll, ends, some, all, {&collector});
  others.take({.first = 1, .count = 2, .logits = std::span(logits).first(2), .top_ids = {}, .top_log_probs = {}});
  EXPECT_EQ(collector.pieces, (std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {6, 1}}));
}

}  // namespace
}  // namespace lfm2::test
