// Several writers of one output: every block of the file has one writer, and whoever joins writes only into the maker's
// file. Files of these names that belong to somebody else stay.
#include "stage/io/row_places.h"

#include <gtest/gtest.h>

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

// Each writer has a copy of the file, like a host that never sees what other hosts write. Every byte of a row must be
// in the copy of the writer that owns the byte's block, and no writer may touch a block of another.
TEST_F(RowPlacesTest, EachBlockIsWrittenByItsOwnerAlone) {
  constexpr uint64_t kBlock = BlockOwners::kBlockBytes;
  struct Case {
    int64_t samples, columns;
    std::vector<int64_t> first_rows;
    uint64_t first, second;
  };
  const std::vector<Case> cases{
      {700, 256, {0, 350}, 8, 0},                            // many blocks, one seam
      {40, 100, {0, 3, 20}, 8, 0},                           // all in one block
      {1000, 100, {0, 1, 2, 999}, 2048, 2048 + 1000 * 400},  // two places, writers of one row
      {30, 20000, {0, 10, 11, 20}, 24, 0},                   // rows longer than a block
      {500, 128, {100, 300}, 8, 0},                          // resumed: the rows before the first writer's are there
      {kBlock / 4, 4, {0, kBlock / 16, kBlock / 8}, kBlock, 5 * kBlock}};  // seams on the edges of blocks
  for (const Case& one : cases) {
    SCOPED_TRACE(testing::Message() << one.samples << " rows of " << one.columns);
    const OutputJob all = job({.top_k = one.second > 0 ? one.columns : 0}, one.samples, one.columns);
    const auto writers = static_cast<int64_t>(one.first_rows.size());
    const uint64_t end = std::max(one.first, one.second) + bytes_of_rows(all);
    const BlockOwners owners(one.first_rows, {one.first, one.second}, static_cast<uint64_t>(one.columns) * 4,
                             bytes_of_rows(all));
    std::string expected(end, '\0'), seams;
    std::vector<std::string> copies;
    std::vector<std::unique_ptr<PartialFile>> files;
    std::vector<std::unique_ptr<OutputJob>> jobs;
    std::vector<std::unique_ptr<RowPlaces>> places;
    for (int64_t writer = 0; writer < writers; ++writer) {
      const auto path = folder_ / fmt::format("writer-{}.bin", writer);
      files.push_back(std::make_unique<PartialFile>(path, begin_partial(path)));
      files.back()->set_size(end);
      jobs.push_back(std::make_unique<OutputJob>(all));
      jobs.back()->replica = writer;
      jobs.back()->replicas = writers;
      places.push_back(std::make_unique<RowPlaces>(*files.back(), *jobs.back(), RowOffsets{one.first, one.second}));
      places.back()->write_from_several_hosts(one.first_rows);
      const int64_t next = writer + 1 < writers ? one.first_rows[static_cast<size_t>(writer) + 1] : one.samples;
      for (int64_t row = one.first_rows[static_cast<size_t>(writer)], count = 0; row < next; row += count) {
        count = std::min<int64_t>(7, next - row);
        std::vector<int32_t> ids(static_cast<size_t>(count * one.columns));
        for (size_t i = 0; i < ids.size(); ++i)
          ids[i] = static_cast<int32_t>(row * one.columns) + static_cast<int32_t>(i) + 1;
        std::vector<float> values(ids.begin(), ids.end());
        ResultRows rows{.first = row, .count = count, .logits = values};
        const size_t at = static_cast<size_t>(row * one.columns) * 4;
        if (one.second > 0) {
          rows.logits = {};
          rows.top_ids = ids;
          rows.log_probs = values;
          std::memcpy(expected.data() + one.first + at, ids.data(), ids.size() * 4);
          std::memcpy(expected.data() + one.second + at, values.data(), values.size() * 4);
        } else {
          std::memcpy(expected.data() + one.first + at, values.data(), values.size() * 4);
        }
        places.back()->write(rows);
      }
      seams += places.back()->pop_seams();
    }
    for (auto& one_place : places) one_place->write_seams(seams);
    for (auto& file : files) copies.push_back(read_bytes(file->path()));
    for (uint64_t block = 0; block < end; block += kBlock) {
      const uint64_t bytes = std::min(kBlock, end - block);
      for (int64_t writer = 0; writer < writers; ++writer) {
        const std::string found = copies[static_cast<size_t>(writer)].substr(block, bytes);
        if (writer == owners.owner(block))
          EXPECT_EQ(found == expected.substr(block, bytes), true) << "block at " << block << " of writer " << writer;
        else
          EXPECT_EQ(found == std::string(bytes, '\0'), true) << "writer " << writer << " wrote at " << block;
      }
    }
    EXPECT_LE(seams.size(), static_cast<size_t>(writers) * 2 * (kBlock + 16)) << "more than what lies at the edges";
  }
}

TEST_F(RowPlacesTest, OnlyTheMakersFileIsJoined) {
  OutputJob job = this->job({}, 9, 7);
  job.replicas = 2;
  const auto output = folder_ / "o.bin", elsewhere = folder_ / "other" / "o.bin";
  std::filesystem::create_directory(elsewhere.parent_path());
  auto first = create_output(output, job);
  job.replica = 1;
  for (const std::string& left :
       {std::string(), std::string(8 + 9 * 28, 'x'), read_bytes(partial_path(output)) + "x"}) {
    write_bytes(partial_path(elsewhere), left);
    // The maker's bytes, with one byte of the tag changed.
    if (left.ends_with("x") && left.size() > 8 + 9 * 28 + 1) {
      std::string other = left.substr(0, left.size() - 1);
      other.back() = static_cast<char>(other.back() + 1);
      write_bytes(partial_path(elsewhere), other);
    }
    expect_error([&] { join_output(elsewhere, first->shared(), job); }, ExitCode::kCantCreate,
                 {"o.bin.partial", "is not the file that the first replica is writing"});
  }
  EXPECT_TRUE(join_output(output, first->shared(), job));
  job.replica = 0;
  std::vector<float> rows(9 * 7, 1.0f);
  first->consume({.first = 0, .count = 9, .logits = rows});
  first->commit();
  EXPECT_EQ(read_bytes(output).size(), 8u + 9 * 28) << "the tag stayed in the file";
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
