#include "stage/io/rows_output.h"

#include <algorithm>
#include <array>
#include <span>

#include "base/checked_file.h"
#include "base/json/json.h"
#include "stage/hdf5/h5.h"
#include "stage/io/row_places.h"

namespace lfm2 {

namespace {

// A resuming run rewrites everything but the rows, and sets the file's size, so it need not trust these bytes. Equal
// jobs give equal bytes, and only rows take time.

// i32 samples, i32 vocab, then a row of fp32 logits a sample.
RowOffsets frame_bin(PartialFile& partial, const OutputJob& job) {
  const std::array<int32_t, 2> header{static_cast<int32_t>(job.samples()), static_cast<int32_t>(job.vocab)};
  partial.write(0, std::as_bytes(std::span(header)));
  partial.set_size(sizeof header + bytes_of_rows(job));
  return {.first = sizeof header, .second = 0};
}

// Rows are written without HDF5, which would copy on one thread and leave no readable file if the process is killed.
// The datasets are contiguous, of native types.
RowOffsets make_h5(const PendingPath& pending, const OutputJob& job) {
  h5::File file = create_pending_h5(pending);
  const auto rows = static_cast<uint64_t>(job.rows());
  RowOffsets places;
  if (job.kind.score) {
    places.first = file.create_dataset("is_greedy", DType::kI32, {rows});
    places.second = file.create_dataset("logprobs", DType::kF32, {rows});
    if (job.scored_bytes != nullptr)
      file.write_i64("bytes", job.samples(), [&](int64_t i) { return job.scored_bytes->length(i); });
  } else if (job.kind.top_k > 0) {
    places.first = file.create_dataset("top_ids", DType::kI32, {rows, static_cast<uint64_t>(job.kind.top_k)});
    places.second = file.create_dataset("top_logprobs", DType::kF32, {rows, static_cast<uint64_t>(job.kind.top_k)});
  } else {
    const bool hidden = job.kind.hidden != Hidden::kNone;
    places.first =
        file.create_dataset(hidden ? "hidden" : "logits", DType::kF32, {rows, static_cast<uint64_t>(row_columns(job))});
    if (hidden) file.set_attribute("states", states_name(job.kind));
  }
  file.write_i64("offsets", job.offsets->size(), [&](int64_t i) { return (*job.offsets)[i]; });
  write_ids(file, job);
  file.set_attribute("format", "lfm2-stage-output");
  file.set_attribute("positions", std::string(positions_name(job.kind)));
  write_facts(file, job.facts);
  file.close();
  return places;
}

void copy(const CheckedFile& from, uint64_t first, uint64_t end, PartialFile& into) {
  std::vector<std::byte> piece;
  for (; first < end; first += piece.size()) {
    piece.resize(std::min(uint64_t{1} << 20, end - first));
    from.read(first, piece);
    into.write(first, piece);
  }
}

// HDF5 makes a separate file with empty rows, whose metadata are copied, because HDF5 would lock NAME.partial itself.
RowOffsets frame_h5(PartialFile& partial, const OutputJob& job) {
  const PendingPath pending = pending_output(partial.output());
  const RowOffsets places = make_h5(pending, job);
  const CheckedFile made(pending.temporary_path());
  std::array<uint64_t, 2> rows{places.first, places.second};
  std::sort(rows.begin(), rows.end());
  uint64_t next = 0;
  for (const uint64_t begin : rows) {
    if (begin == 0) continue;  // there is but one of them
    copy(made, next, begin, partial);
    next = begin + bytes_of_rows(job);
  }
  copy(made, next, made.size(), partial);
  partial.set_size(made.size());
  return places;
}

RowOffsets frame(PartialFile& partial, const OutputJob& job) {
  return partial.output().extension() == ".bin" ? frame_bin(partial, job) : frame_h5(partial, job);
}

// .bin and .h5: rows at their places, in any order. The first replica creates the file, those of its host join it.
class RowsOutput : public OutputFile, private RowConsumer {
 public:
  RowsOutput(const std::filesystem::path& path, const OutputJob& job, FileDescriptor file)
      : partial_(path, std::move(file), 0, true), job_(job), rows_(partial_, job_, frame(partial_, job_)) {
    rows_.map();
  }
  RowsOutput(const std::filesystem::path& path, const OutputJob& job, FileDescriptor file, const RowOffsets& places)
      : partial_(path, std::move(file), job.replica, true), job_(job), rows_(partial_, job_, places) {
    rows_.map();
  }

  void start_journal(const JournalContent& content) {
    if (!job_.identity.empty()) partial_.start_journal(content);
  }
  RowConsumer* by_rows() override { return rows_.is_mapped() ? this : nullptr; }
  void consume(const ResultRows& rows) override { rows_.write(rows); }
  void finished(int64_t first, int64_t count, const HashSum& results) override {
    partial_.finished({.first = first, .count = count, .results = results});
  }
  void keep() override { partial_.sync(); }
  void commit() override {
    rows_.close();
    if (job_.replica == 0)
      partial_.commit();
    else
      partial_.sync();
  }
  void start_over() override {}
  std::string shared() const override {
    return json_text(Json{{"first", rows_.places().first},
                          {"second", rows_.places().second},
                          {"id", partial_.journal_id()},
                          {"cache", page_cache_of(partial_.file(), partial_.path())}});
  }
  void receive(const RemotePart& part) override {
    if (!part.bytes.empty()) partial_.write(part.offset, std::as_bytes(std::span(part.bytes)));
    if (part.count > 0) finished(part.first, part.count, part.results);
  }
  void replay(int64_t first, int64_t count, ResultConsumer& consumer) const override {
    constexpr int64_t kRows = 256;  // at a time
    const bool all = job_.kind.positions == Positions::kAll;
    const auto row_of = [&](int64_t sample) { return all ? (*job_.offsets)[sample] : sample; };
    const int64_t end = row_of(first + count);
    for (int64_t row = row_of(first); row < end; row += kRows) {
      rows_.read(row, std::min(kRows, end - row), consumer);
      job_.pulse();
    }
  }
  // Removes records from `content` whose bytes in the file do not match the journal.
  void keep_intact(JournalContent& content) const {
    std::erase_if(content.records, [&](const JournalRecord& record) {
      ResultHash hash(job_.threads);
      replay(record.first, record.count, hash);
      return hash.sum() != record.results;
    });
  }

 private:
  void consume_row(const ResultRows& row) override { rows_.write(row); }

  PartialFile partial_;
  OutputJob job_;
  RowPlaces rows_;
};

// Rows of a .bin or .h5 that another rank writes.
class RemoteRows : public OutputFile {
 public:
  RemoteRows(const OutputJob& job, const RowOffsets& places) : job_(job), places_(places) {}
  void consume(const ResultRows& rows) override {
    for_each_place(job_, places_, rows, [this](uint64_t offset, std::span<const std::byte> bytes) {
      const std::string_view all(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      for (size_t done = 0; done < all.size(); done += RemotePart::kMaxBytes)
        job_.send({.offset = offset + done, .bytes = std::string(all.substr(done, RemotePart::kMaxBytes))});
    });
  }
  void finished(int64_t first, int64_t count, const HashSum& results) override {
    job_.send({.first = first, .count = count, .results = results});
  }
  void keep() override {}
  void commit() override {}
  void start_over() override {}
  void replay(int64_t, int64_t, ResultConsumer&) const override { expect(false, "RemoteRows: has no rows"); }

 private:
  OutputJob job_;
  RowOffsets places_;
};

}  // namespace

std::unique_ptr<OutputFile> create_rows(const std::filesystem::path& path, const OutputJob& job) {
  auto output = std::make_unique<RowsOutput>(path, job, begin_partial(path));
  output->start_journal(new_journal(job));
  return output;
}

std::unique_ptr<OutputFile> resume_rows(const std::filesystem::path& path, const OutputJob& job, Unfinished& begun) {
  auto output = std::make_unique<RowsOutput>(path, job, std::move(begun.file));
  output->keep_intact(begun.content);
  output->start_journal(begun.content);
  return output;
}

std::unique_ptr<OutputFile> join_rows(const std::filesystem::path& path, const std::string& shared,
                                      const OutputJob& job) {
  const Json made = parse_json(shared, "output of another replica");
  const RowOffsets places{.first = made.at("first"), .second = made.at("second")};
  FileDescriptor file = join_partial(path);
  const std::string cache = file.get() < 0 ? "" : page_cache_of(file, path);
  if (cache.empty() || cache != made.at("cache").get<std::string>()) return std::make_unique<RemoteRows>(job, places);
  auto output = std::make_unique<RowsOutput>(path, job, std::move(file), places);
  JournalContent content = new_journal(job);
  content.id = made.at("id");
  output->start_journal(content);
  return output;
}

}  // namespace lfm2
