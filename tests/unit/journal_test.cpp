// The journal and the partial file: damaged anywhere they say less than was finished, never more; and what another run
// goes on with becomes the same file.
#include "stage/journal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <functional>
#include <random>

#include "kernels/error.h"
#include "stage/completions.h"
#include "stage/h5_scan.h"
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
  auto content = read_journals(output_, 15);
  leave_out_impossible(*content, 13);  // samples that the job does not have
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
  auto content = read_journals(output_, 15);
  EXPECT_EQ(content->records.size(), 7u);
  leave_out_impossible(*content, 15);
  EXPECT_EQ(content->records.size(), 6u);
  EXPECT_EQ(journal_paths(output_).size(), 4u);
  for (const std::string& first : {std::string(), text_.substr(0, 40)}) {  // the others say what the job is, too
    std::filesystem::remove(journal_path(output_));
    if (!first.empty()) write_text(journal_path(output_), first);
    content = read_journals(output_, 15);
    ASSERT_TRUE(content);
    EXPECT_EQ(content->records.size(), 2u) << first.size();
  }
}

// Of a job that has fewer samples: it is another one, and nothing of this one's goes.
TEST_F(JournalTest, RecordsBeyondTheJobAreSeen) {
  write_text(partial_path(output_), "rows");
  const auto begun = find_unfinished(output_, 1);
  ASSERT_TRUE(begun);
  EXPECT_EQ(begun->content.records.size(), 1u);
}

// More than any memory, by its size alone.
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
  write_text(journal_path(output_, 20261121), "my diary");
  Journal(journal_path(output_, 1), {.id = 78, .text = "", .records = {}});
  remove_journals(output_, 77);
  EXPECT_EQ(journal_paths(output_), (std::vector{journal_path(output_, 1), journal_path(output_, 20261121)}));
  remove_journals(output_);
  EXPECT_EQ(read_text(journal_path(output_, 20261121)), "my diary");
  EXPECT_EQ(journal_paths(output_).size(), 1u);
}

TEST_F(JournalTest, NothingIsLeftOfOneThatCannotBeMade) {
  const auto place = journal_path(folder_ / "p.bin");
  std::filesystem::create_directories(place / "in the way");
  EXPECT_THROW(Journal(place, {.id = 1, .text = "", .records = {}}), Error);
  EXPECT_FALSE(std::filesystem::exists(place.string() + ".new"));
}

TEST_F(JournalTest, LinksAreNotFollowed) {
  write_text(folder_ / "precious", "words");
  for (const auto& name : {partial_path(folder_ / "p.bin"), std::filesystem::path(folder_ / "p.bin.journal.new")}) {
    std::filesystem::create_symlink(folder_ / "precious", name);
    EXPECT_THROW(begin_partial(folder_ / "p.bin"); Journal(folder_ / "p.bin.journal", {}), Error);
    EXPECT_EQ(read_text(folder_ / "precious"), "words");
    std::filesystem::remove(name);
  }
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
            .identity = "{}",
            .pulse = [this] { ++pulses_; }};
  }
  size_t row_bytes(ResultKind kind) const {
    return sizeof(float) * static_cast<size_t>(kind.top_k > 0 ? kind.top_k : kVocab);
  }
  // Of a whole file that is there.
  size_t place_of_rows(const std::string& name, const OutputJob& job) const {
    if (!name.ends_with(".h5")) return 8;
    return h5::scan(CheckedFile(folder_ / name)).datasets.at(job.kind.top_k > 0 ? "top_ids" : "logits").offset;
  }
  // All that is not in `content`.
  void finish(OutputFile& file, ResultKind kind, const JournalContent& content) {
    std::vector<bool> done(9);
    for (const JournalRecord& record : content.records)
      for (int64_t i = 0; i < record.count; ++i) done[static_cast<size_t>(record.first + i)] = true;
    for (int64_t sample = 0; sample < 9; ++sample)
      if (!done[static_cast<size_t>(sample)]) hand_out(file, kind, sample, 1);
    file.commit();
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
  mutable int pulses_ = 0;
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
    using Damage = std::function<void(std::string&)>;
    const auto flip = [](std::string& text, size_t at) { text.at(at) = static_cast<char>(text.at(at) ^ 1); };
    const size_t row =
        place_of_rows(form.name, job) + (form.kind.positions == Positions::kAll ? 7 : 4) * row_bytes(form.kind);
    std::vector<std::pair<Damage, size_t>> damages{
        {[](std::string&) {}, 3},
        {[&](std::string& text) { flip(text, output.extension() == ".jsonl" ? 5 : row); }, 2},  // in sample 4
        {[](std::string& text) { text.clear(); }, 0}};
    if (output.extension() != ".jsonl") {  // what is around the rows
      damages.push_back({[&](std::string& text) { flip(text, 2); }, 3});
      damages.push_back({[](std::string& text) { text += "and more"; }, 3});
      damages.push_back({[](std::string& text) { std::fill(text.begin(), text.begin() + 8, '\0'); }, 3});
    }
    if (output.extension() == ".h5") {
      damages.push_back({[&](std::string& text) { flip(text, text.size() - 3); }, 3});
      damages.push_back({[&](std::string& text) { text.resize(text.size() - 100); }, 3});
    }
    std::filesystem::remove(output);
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
    for (size_t i = 0; i < damages.size(); ++i) {
      SCOPED_TRACE(i);
      {
        auto part = create_output(output, job);
        hand_out(*part, form.kind, 4, 2);
        hand_out(*part, form.kind, 0, 3);
        hand_out(*part, form.kind, 7, 1);
      }
      std::string text = read_text(partial_path(output));
      damages[i].first(text);
      write_text(partial_path(output), text);
      auto begun = find_unfinished(output, 9);
      ASSERT_TRUE(begun);
      EXPECT_EQ(begun->content.records.size(), 3u);
      auto resumed = resume_output(output, job, *begun);
      EXPECT_EQ(begun->content.records.size(), damages[i].second);
      EXPECT_GT(pulses_, 0);
      finish(*resumed, form.kind, begun->content);
      EXPECT_EQ(read_text(output), expected);
      std::filesystem::remove(output);
      EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
    }
  }
}

TEST_F(ResumedFileTest, OneRunAtATime) {
  const auto expect_refused = [](const std::function<void()>& begin, const char* reason) {
    try {
      begin();
      ADD_FAILURE() << "expected: " << reason;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kCantCreate);
      EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
    }
  };
  for (const char* name : {"o.bin", "o.h5", "o.jsonl"}) {
    SCOPED_TRACE(name);
    const auto output = folder_ / name;
    const auto look = [&] { find_unfinished(output, 9); };
    const auto create = [&] { create_output(output, job({})); };
    auto first = create_output(output, job({}));
    for (int pass = 0; pass < 2; ++pass) {
      expect_refused(look, "another run is writing it");
      expect_refused(create, "another run is writing it");
      if (pass == 0) hand_out(*first, {}, 0, 3);
    }
    first.reset();
    expect_refused(create, "another run has begun it meanwhile");  // one that found nothing before it loaded
    auto begun = find_unfinished(output, 9);
    ASSERT_TRUE(begun);
    expect_refused(look, "another run is writing it");
    auto resumed = resume_output(output, job({}), *begun);
    EXPECT_EQ(begun->content.records.size(), 1u);
    expect_refused(look, "another run is writing it");
    finish(*resumed, {}, begun->content);
    EXPECT_TRUE(std::filesystem::exists(output));
    std::filesystem::remove(output);
  }
}

TEST_F(ResumedFileTest, OnlyItsOwnFileGetsTheName) {
  for (const char* name : {"o.bin", "o.h5", "o.jsonl"}) {
    auto output = create_output(folder_ / name, job({}));
    for (int64_t sample : {8, 7, 6, 5, 4, 3, 2, 1, 0}) hand_out(*output, {}, sample, 1);
    write_text(folder_ / "other", "half a file");
    std::filesystem::rename(folder_ / "other", partial_path(folder_ / name));
    EXPECT_THROW(output->commit(), Error);
    EXPECT_FALSE(std::filesystem::exists(folder_ / name));
    EXPECT_EQ(read_text(partial_path(folder_ / name)), "half a file");
  }
}

// Whichever of them ends first.
TEST_F(ResumedFileTest, WhatOneReplicaFinishedStays) {
  for (const bool first_ends_first : {false, true}) {
    const auto output = folder_ / "o.bin";
    OutputJob job = this->job({});
    job.replicas = 2;
    auto first = create_output(output, job);
    job.replica = 1;
    auto second = join_output(first->shared(), job);
    hand_out(*second, {}, 5, 2);
    if (first_ends_first) first.reset();
    second.reset();
    first.reset();
    job.replica = 0;
    auto begun = find_unfinished(output, 9);
    ASSERT_TRUE(begun);
    auto resumed = resume_output(output, job, *begun);
    ASSERT_EQ(begun->content.records.size(), 1u);
    EXPECT_EQ(begun->content.records[0].first, 5);
    finish(*resumed, {}, begun->content);
    std::filesystem::remove(output);
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  }
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
    auto begun = find_unfinished(folder_ / name, 9);
    ASSERT_TRUE(begun);
    auto resumed = resume_completion_file(folder_ / name, job, *begun);
    EXPECT_EQ(begun->content.records.size(), 3u);
    for (int64_t sample : {7, 6, 4, 3, 1, 0}) resumed->take(completion(sample));
    resumed->commit();
    EXPECT_EQ(read_text(folder_ / name), expected);
    std::filesystem::remove(folder_ / name);
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  }
}

// Their own numbers are not trusted either: of tokens that are not there, or fewer than none.
TEST_F(ResumedFileTest, CompletionsThatCannotBe) {
  const auto output = folder_ / "c.h5";
  const auto left_of = [&](std::array<int32_t, 3> words, int64_t count) {
    write_text(partial_path(output), {reinterpret_cast<const char*>(words.data()), sizeof words});
    JournalRecord record;
    record.count = count;
    record.bytes = sizeof words;
    record.data_hash = XXH3_64bits(words.data(), sizeof words);
    Journal(journal_path(output), {.id = 1, .text = "{\"job\":{}}", .records = {record}});
    auto begun = find_unfinished(output, 9);
    resume_completion_file(output, job({}), *begun);
    return begun->content.records.size();
  };
  EXPECT_EQ(left_of({1, 1, 5}, 1), 1u);
  EXPECT_EQ(left_of({1, 1, 5}, 2), 0u);
  EXPECT_EQ(left_of({1, 2, 5}, 1), 0u);
  EXPECT_EQ(left_of({1, -1, 5}, 1), 0u);
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
