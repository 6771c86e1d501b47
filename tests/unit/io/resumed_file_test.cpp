// Files that another run resumes: whatever is lost or damaged of the partial file, the result is the same file.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <random>

#include "base/error.h"
#include "stage/hdf5/h5_scan.h"
#include "stage/io/completions.h"
#include "stage/io/journal.h"
#include "stage/io/output_file.h"
#include "support/shards.h"
#include "support/weights_support.h"

namespace lfm2::test {
namespace {

class ResumedFileTest : public testing::Test {
 protected:
  OutputJob job(ResultKind kind) const {
    return {.kind = kind,
            .vocab = kVocab,
            .size = offsets_.job_size(),
            .offsets = &offsets_,
            .names = &names_,
            .facts = {"lfm2", "fp32", "00", "test"},
            .threads = nullptr,
            .identity = "{}",
            .pulse = [this] { ++pulses_; }};
  }
  size_t row_bytes(ResultKind kind) const {
    return sizeof(float) * static_cast<size_t>(kind.columns() > 0 ? kind.columns() : kVocab);
  }
  static const char* rows_name(ResultKind kind) {
    return kind.score ? "is_greedy" : kind.top_k > 0 ? "top_ids" : "logits";
  }
  // The offset of the first row in a finished file.
  size_t place_of_rows(const std::string& name, const OutputJob& job) const {
    if (!name.ends_with(".h5")) return 8;
    return h5::scan(CheckedFile(folder_ / name)).datasets.at(rows_name(job.kind)).offset;
  }
  // Hands out all samples that are not in `content`.
  void finish(OutputFile& file, ResultKind kind, const JournalContent& content) {
    std::vector<bool> done(9);
    for (const JournalRecord& record : content.records)
      for (int64_t i = 0; i < record.count; ++i) done[static_cast<size_t>(record.first + i)] = true;
    for (int64_t sample = 0; sample < 9; ++sample)
      if (!done[static_cast<size_t>(sample)]) hand_out(file, kind, sample, 1);
    file.commit();
  }
  int64_t rows_of(ResultKind kind, int64_t samples) const {
    return kind.positions == Positions::kAll ? offsets_[samples] : samples;
  }
  // Hands out the rows of the samples [first, first + count), as a run does.
  void hand_out(OutputFile& file, ResultKind kind, int64_t first, int64_t count) {
    const int64_t begin = rows_of(kind, first), end = rows_of(kind, first + count);
    ResultRows rows{.first = begin, .count = end - begin};
    const auto columns = static_cast<size_t>(kind.columns() > 0 ? kind.columns() : kVocab);
    const auto at = static_cast<size_t>(begin) * columns, size = static_cast<size_t>(end - begin) * columns;
    const std::span<const float> floats(floats_);
    if (kind.columns() > 0) {
      (kind.score ? rows.is_greedy : rows.top_ids) = std::span<const int32_t>(ids_).subspan(at, size);
      rows.log_probs = floats.subspan(at, size);
    } else {
      rows.logits = floats.subspan(at, size);
    }
    ResultHash hash;
    SampleCounter counter(kind.positions, offsets_, hash, &file);
    for (ResultConsumer* consumer : std::initializer_list<ResultConsumer*>{&hash, &file, &counter})
      consumer->consume(rows);
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
  SampleOffsets offsets_{0};
  SampleNames names_;
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
                           Form{"o.jsonl", {Positions::kAll, 0}}, Form{"o.jsonl", {Positions::kLast, 3}},
                           Form{"o.h5", {Positions::kAll, 0, true}}, Form{"o.jsonl", {Positions::kAll, 0, true}}}) {
    SCOPED_TRACE(form.name);
    const auto output = folder_ / form.name;
    const OutputJob job = this->job(form.kind);
    {
      auto whole = create_output(output, job);
      hand_out(*whole, form.kind, 0, 9);
      whole->commit();
    }
    const std::string expected = read_bytes(output);
    using Damage = std::function<void(std::string&)>;
    const auto flip = [](std::string& text, size_t at) { text.at(at) = static_cast<char>(text.at(at) ^ 1); };
    const size_t row =
        place_of_rows(form.name, job) + (form.kind.positions == Positions::kAll ? 7 : 4) * row_bytes(form.kind);
    std::vector<std::pair<Damage, size_t>> damages{
        {[](std::string&) {}, 3},
        // Damages sample 4.
        {[&](std::string& text) { flip(text, output.extension() == ".jsonl" ? 5 : row); }, 2},
        {[](std::string& text) { text.clear(); }, 0}};
    if (output.extension() != ".jsonl") {  // damages what surrounds the rows
      damages.push_back({[&](std::string& text) { flip(text, 2); }, 3});
      damages.push_back({[](std::string& text) { text += "and more"; }, 3});
      damages.push_back({[](std::string& text) { std::fill(text.begin(), text.begin() + 8, '\0'); }, 3});
    }
    if (output.extension() == ".h5") {
      // Scores are so small that more would be the rows of finished samples.
      const size_t cut = form.kind.score ? 8 : 100;
      damages.push_back({[&](std::string& text) { flip(text, text.size() - 3); }, 3});
      damages.push_back({[cut](std::string& text) { text.resize(text.size() - cut); }, 3});
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
      std::string text = read_bytes(partial_path(output));
      damages[i].first(text);
      write_bytes(partial_path(output), text);
      auto begun = find_unfinished(output, 9);
      ASSERT_TRUE(begun);
      EXPECT_EQ(begun->content.records.size(), 3u);
      auto resumed = resume_output(output, job, *begun);
      EXPECT_EQ(begun->content.records.size(), damages[i].second);
      EXPECT_GT(pulses_, 0);
      finish(*resumed, form.kind, begun->content);
      EXPECT_EQ(read_bytes(output), expected);
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
    // The run looked before it loaded, and had found nothing.
    expect_refused(create, "another run has begun it meanwhile");
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
    write_bytes(folder_ / "other", "half a file");
    std::filesystem::rename(folder_ / "other", partial_path(folder_ / name));
    EXPECT_THROW(output->commit(), Error);
    EXPECT_FALSE(std::filesystem::exists(folder_ / name));
    EXPECT_EQ(read_bytes(partial_path(folder_ / name)), "half a file");
  }
}

// As purges of scratch folders do, while a run is writing.
TEST_F(ResumedFileTest, FilesThatAreRemovedMeanwhileAreSaved) {
  for (const char* name : {"o.bin", "o.h5", "o.jsonl"}) {
    SCOPED_TRACE(name);
    const auto output = folder_ / name;
    {
      auto whole = create_output(output, job({}));
      hand_out(*whole, {}, 0, 9);
      whole->commit();
    }
    const std::string expected = read_bytes(output);
    std::filesystem::remove(output);
    for (const bool at_the_end : {false, true}) {
      auto file = create_output(output, job({}));
      hand_out(*file, {}, 0, 4);
      std::filesystem::remove(journal_path(output));
      file->keep();  // writes the journal again, and nothing else is wrong
      hand_out(*file, {}, 4, at_the_end ? 5 : 1);
      for (const auto& path : {partial_path(output), journal_path(output)}) std::filesystem::remove(path);
      try {
        at_the_end ? file->commit() : file->keep();
        ADD_FAILURE() << "expected an error";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::kIo);
        EXPECT_NE(std::string(error.what()).find("what is finished is saved, resume with --resume"), std::string::npos)
            << error.what();
      }
      file.reset();
      auto begun = find_unfinished(output, 9);
      ASSERT_TRUE(begun);
      auto resumed = resume_output(output, job({}), *begun);
      EXPECT_EQ(begun->content.records.size(), 2u);
      finish(*resumed, {}, begun->content);
      EXPECT_EQ(read_bytes(output), expected);
      std::filesystem::remove(output);
      EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
    }
  }
}

// Whichever replica ends first, the finished samples stay.
TEST_F(ResumedFileTest, WhatOneReplicaFinishedStays) {
  for (const bool first_ends_first : {false, true}) {
    const auto output = folder_ / "o.bin";
    OutputJob job = this->job({});
    auto first = create_output(output, job);
    job.replica = 1;
    auto second = join_output(output, first->shared(), job);
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
      for (int64_t sample = 0; sample < 9; ++sample) whole->consume(completion(sample));
      whole->commit();
    }
    const std::string expected = read_bytes(folder_ / name);
    std::filesystem::remove(folder_ / name);
    {
      auto part = create_completion_file(folder_ / name, job);
      for (int64_t sample : {8, 2, 5}) part->consume(completion(sample));
    }
    write_bytes(partial_path(folder_ / name), read_bytes(partial_path(folder_ / name)) + "half a li");
    auto begun = find_unfinished(folder_ / name, 9);
    ASSERT_TRUE(begun);
    auto resumed = resume_completion_file(folder_ / name, job, *begun);
    EXPECT_EQ(begun->content.records.size(), 3u);
    for (int64_t sample : {7, 6, 4, 3, 1, 0}) resumed->consume(completion(sample));
    resumed->commit();
    EXPECT_EQ(read_bytes(folder_ / name), expected);
    std::filesystem::remove(folder_ / name);
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  }
}

// The numbers inside completions are not trusted either: more tokens than there are, or fewer than none.
TEST_F(ResumedFileTest, CompletionsThatCannotBe) {
  const auto output = folder_ / "c.h5";
  const auto left_of = [&](std::array<int32_t, 3> words, int64_t count) {
    write_bytes(partial_path(output), {reinterpret_cast<const char*>(words.data()), sizeof words});
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
    void consume(const ResultRows& rows) override {
      pieces.emplace_back(rows.first, rows.count);
      values.insert(values.end(), rows.logits.begin(), rows.logits.end());
    }
  } collector;
  const SampleOffsets all{0, 2, 3, 6, 7}, left{0, 1, 4, 5}, ends{0, 2, 3};
  SampleNumbers numbers, some;
  numbers.add(1, 3);
  some.add(0, 1);
  some.add(3, 1);
  const std::vector<float> logits{1, 2, 3, 4, 5};
  RenumberedRows rows(Positions::kAll, left, numbers, all, {&collector});
  rows.consume({.first = 0, .count = 5, .logits = logits});
  EXPECT_EQ(collector.pieces, (std::vector<std::pair<int64_t, int64_t>>{{2, 5}}));
  collector.pieces.clear();
  RenumberedRows others(Positions::kAll, ends, some, all, {&collector});
  others.consume({.first = 1, .count = 2, .logits = std::span(logits).first(2)});
  EXPECT_EQ(collector.pieces, (std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {6, 1}}));
}

}  // namespace
}  // namespace lfm2::test
