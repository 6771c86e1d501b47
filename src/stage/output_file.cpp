// The three forms: .bin (last logits), .h5 (anything), .jsonl (anything, a line a sample).
#include "stage/output_file.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <random>

#include "stage/checked_file.h"
#include "stage/h5.h"
#include "stage/json.h"

namespace lfm2 {

namespace {

// Where the logits begin in the file, or the ids and the log-probabilities.
struct Places {
  uint64_t first = 0, second = 0;
};

int64_t columns_of(const OutputJob& job) { return job.kind.top_k > 0 ? job.kind.top_k : job.vocab; }
uint64_t bytes_of_rows(const OutputJob& job) {
  return static_cast<uint64_t>(job.rows() * columns_of(job)) * sizeof(float);
}

// Rows at known places of a file: every rank that has rows writes its own, through a mapping of the file, for writing
// with pwrite is one thread at a time for a file. Its blocks are taken first, so that a full disk is an error here and
// not a signal later; where the file system cannot promise them, or map, rows are written with pwrite after all.
class RowPlaces {
 public:
  RowPlaces(const PartialFile& partial, const OutputJob& job, const Places& places)
      : partial_(partial),
        job_(job),
        first_(places.first),
        second_(places.second),
        mapping_(map_for_writing(partial.file(), std::max(first_, second_) + bytes_of_rows(job), partial.path())) {}

  void write(const ResultRows& rows) const {
    static_assert(std::endian::native == std::endian::little);
    const auto write = [&](uint64_t begin, auto values, int64_t columns) {
      const uint64_t place = begin + static_cast<uint64_t>(rows.first * columns) * sizeof(float);
      if (mapping_)
        mapping_.write(place, std::as_bytes(values), job_.threads);
      else
        write_fully(partial_.file(), place, std::as_bytes(values), partial_.path());
    };
    if (!rows.logits.empty()) write(first_, rows.logits, job_.vocab);
    if (rows.top_ids.empty()) return;
    write(first_, rows.top_ids, job_.kind.top_k);
    write(second_, rows.top_log_probs, job_.kind.top_k);
  }
  void read(int64_t first, int64_t count, ResultConsumer& consumer) const {
    const auto read = [&](uint64_t begin, auto& values, int64_t columns) {
      values.resize(static_cast<size_t>(count * columns));
      partial_.read(begin + static_cast<uint64_t>(first * columns) * sizeof(float),
                    std::as_writable_bytes(std::span(values)));
    };
    std::vector<float> floats;
    std::vector<int32_t> ids;
    ResultRows rows{.first = first, .count = count, .logits = {}, .top_ids = {}, .top_log_probs = {}};
    if (job_.kind.top_k > 0) {
      read(first_, ids, job_.kind.top_k);
      read(second_, floats, job_.kind.top_k);
      rows.top_ids = ids;
      rows.top_log_probs = floats;
    } else {
      read(first_, floats, job_.vocab);
      rows.logits = floats;
    }
    consumer.take(rows);
  }
  void close() { mapping_ = {}; }
  Json json() const { return {{"first", first_}, {"second", second_}}; }

 private:
  const PartialFile& partial_;
  const OutputJob& job_;
  uint64_t first_ = 0, second_ = 0;
  FileMapping mapping_;
};

// Everything but the rows is written anew by every run that goes on with the file, so that nothing of it has to be
// trusted: equal jobs give equal bytes, only rows take time. So is its size.

// i32 samples, i32 vocab, then a row of fp32 logits a sample.
Places frame_bin(PartialFile& partial, const OutputJob& job) {
  const std::array<int32_t, 2> header{static_cast<int32_t>(job.samples()), static_cast<int32_t>(job.vocab)};
  partial.write(0, std::as_bytes(std::span(header)));
  partial.set_size(sizeof header + bytes_of_rows(job));
  return {.first = sizeof header, .second = 0};
}

// Rows go past HDF5, which would copy on one thread and leaves no readable file when the process is killed. The
// datasets are contiguous, of this machine's own types.
Places make_h5(const PendingPath& pending, const OutputJob& job) {
  h5::File file = create_pending_h5(pending);
  const auto rows = static_cast<uint64_t>(job.rows());
  Places places;
  if (job.kind.top_k > 0) {
    places.first = file.create_dataset("top_ids", DType::kI32, {rows, static_cast<uint64_t>(job.kind.top_k)});
    places.second = file.create_dataset("top_logprobs", DType::kF32, {rows, static_cast<uint64_t>(job.kind.top_k)});
  } else {
    places.first = file.create_dataset("logits", DType::kF32, {rows, static_cast<uint64_t>(job.vocab)});
  }
  file.write_i64("offsets", *job.offsets);
  file.set_attribute("format", "lfm2-stage-output");
  file.set_attribute("positions", job.kind.positions == Positions::kAll ? "all" : "last");
  file.set_attribute("dtype", job.facts.dtype);
  file.set_attribute("model_type", job.facts.model_type);
  file.set_attribute("weights_split_id", job.facts.split_id);
  file.set_attribute("created_by", job.facts.created_by);
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

// HDF5 makes a file with nothing in its rows, and what is around them is copied: HDF5 would lock NAME.partial itself.
Places frame_h5(PartialFile& partial, const OutputJob& job) {
  const PendingPath pending = pending_output(partial.output());
  const Places places = make_h5(pending, job);
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

Places frame(PartialFile& partial, const OutputJob& job) {
  return partial.output().extension() == ".bin" ? frame_bin(partial, job) : frame_h5(partial, job);
}

// .bin and .h5: rows at their places, in any order. Of replicas the first makes the file, the others join it.
class RowsOutput : public OutputFile {
 public:
  RowsOutput(const std::filesystem::path& path, const OutputJob& job, FileDescriptor file)
      : partial_(path, std::move(file)), job_(job), places_(partial_, job_, frame(partial_, job_)) {}
  RowsOutput(const std::filesystem::path& path, const OutputJob& job, FileDescriptor file, const Places& places)
      : partial_(path, std::move(file), job.replica), job_(job), places_(partial_, job_, places) {}

  void start_journal(const JournalContent& content) {
    if (!job_.identity.empty()) partial_.start_journal(content);
  }
  void take(const ResultRows& rows) override { places_.write(rows); }
  void finished(int64_t first, int64_t count, const HashSum& results) override {
    partial_.finished(first, count, results);
  }
  void keep() override { partial_.sync(); }
  void commit() override {
    places_.close();
    if (job_.replica == 0)
      partial_.commit();
    else
      partial_.sync();
  }
  std::string shared() const override {
    return Json{{"output", partial_.output().string()}, {"places", places_.json()}, {"id", partial_.journal().id}}
        .dump();
  }
  void replay(int64_t first, int64_t count, ResultConsumer& consumer) const override {
    constexpr int64_t kRows = 256;  // at a time
    const bool all = job_.kind.positions == Positions::kAll;
    const auto row_of = [&](int64_t sample) { return all ? (*job_.offsets)[static_cast<size_t>(sample)] : sample; };
    const int64_t end = row_of(first + count);
    for (int64_t row = row_of(first); row < end; row += kRows) {
      places_.read(row, std::min(kRows, end - row), consumer);
      job_.pulse();
    }
  }
  // Leaves out of `content` what is not in the file as the journal says.
  void keep_intact(JournalContent& content) const {
    std::erase_if(content.records, [&](const JournalRecord& record) {
      ResultHash hash(job_.threads);
      replay(record.first, record.count, hash);
      return hash.sum() != record.results;
    });
  }

 private:
  PartialFile partial_;
  OutputJob job_;
  RowPlaces places_;
};

// One object a sample: "id" (the input's, else its number), then "logits" or "top_ids" and "top_logprobs": of the last
// position a list, of all positions a list of lists.
class JsonlOutput : public OutputFile {
 public:
  JsonlOutput(const std::filesystem::path& path, const OutputJob& job, FileDescriptor file)
      : partial_(path, std::move(file)), job_(job) {}

  void start_journal(const JournalContent& content) {
    if (!job_.identity.empty()) partial_.start_journal(content);
  }
  void resume(JournalContent& content) {
    partial_.keep_intact(content, job_.pulse);
    start_journal(content);
    partial_.drop_unfinished();
  }
  void take(const ResultRows& rows) override {
    const int64_t vocab = job_.vocab, top_k = job_.kind.top_k;
    for (int64_t row = 0; row < rows.count; ++row) {
      if (top_k > 0) {
        append(first_, rows.top_ids.subspan(static_cast<size_t>(row * top_k), static_cast<size_t>(top_k)));
        append(second_, rows.top_log_probs.subspan(static_cast<size_t>(row * top_k), static_cast<size_t>(top_k)));
      } else {
        append(first_, rows.logits.subspan(static_cast<size_t>(row * vocab), static_cast<size_t>(vocab)));
      }
      const int64_t place = rows.first + row;
      if (!all())
        add_line(place);
      else if (const auto next = std::upper_bound(job_.offsets->begin(), job_.offsets->end(), place);
               *next == place + 1)
        add_line(next - job_.offsets->begin() - 1);
    }
  }
  void finished(int64_t first, int64_t count, const HashSum& results) override {
    partial_.append(first, count, std::as_bytes(std::span(lines_)), results);
    lines_.clear();
  }
  void keep() override { partial_.sync(); }
  void commit() override { commit_in_order(partial_, job_.pulse); }
  void start_over() override { partial_.start_over(); }
  void replay(int64_t, int64_t, ResultConsumer&) const override {
    throw Error(ExitCode::kSoftware, "JsonlOutput: text is not read back");
  }

 private:
  bool all() const { return job_.kind.positions == Positions::kAll; }

  template <class T>
  void append(std::string& text, std::span<const T> values) const {
    if (!text.empty()) text += ',';
    if (all()) text += '[';
    append_values(text, values);
    if (all()) text += ']';
  }

  void add_line(int64_t sample) {
    const std::string name = job_.names->empty() || (*job_.names)[static_cast<size_t>(sample)].empty()
                                 ? std::to_string(sample)
                                 : (*job_.names)[static_cast<size_t>(sample)];
    lines_ += job_.kind.top_k > 0
                  ? fmt::format("{{\"id\":{},\"top_ids\":[{}],\"top_logprobs\":[{}]}}\n", name, first_, second_)
                  : fmt::format("{{\"id\":{},\"logits\":[{}]}}\n", name, first_);
    first_.clear();
    second_.clear();
  }

  PartialFile partial_;
  OutputJob job_;
  std::string lines_;           // of samples not yet said to be finished
  std::string first_, second_;  // the current sample's values so far
};

}  // namespace

void check_output_form(const std::filesystem::path& path, const ResultKind& kind) {
  const std::string ending = path.extension();
  if (ending != ".bin" && ending != ".h5" && ending != ".jsonl")
    throw Error(ExitCode::kUsage,
                fmt::format("--output {}: expected a name ending in .bin, .h5 or .jsonl", path.string()));
  if (kind.positions == Positions::kNone)
    throw Error(ExitCode::kUsage,
                fmt::format("--output {} with --logits none: nothing would be written", path.string()));
  if (ending == ".bin" && (kind.positions != Positions::kLast || kind.top_k > 0))
    throw Error(
        ExitCode::kUsage,
        fmt::format("--output {}: .bin holds last-position logits only, expected .h5 or .jsonl", path.string()));
}

void check_output_place(const std::filesystem::path& path) {
  std::error_code unknown;  // what cannot be looked at cannot be created either
  if (std::filesystem::is_directory(path, unknown))
    throw Error(ExitCode::kCantCreate, fmt::format("{}: is a folder, expected a file name", path.string()));
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  const FileDescriptor probe(::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600));
  if (probe.get() >= 0) return;
  int error = errno;
  // EISDIR: from kernels that do not know the flag.
  if (error == EOPNOTSUPP || error == EISDIR) error = ::access(folder.c_str(), W_OK | X_OK) == 0 ? 0 : errno;
  if (error != 0)
    throw Error(ExitCode::kCantCreate,
                fmt::format("{}: cannot be created: open failed: {}", path.string(), std::strerror(error)));
}

PendingPath pending_output(const std::filesystem::path& output) { return {output, output.string() + ".new"}; }

h5::File create_pending_h5(const PendingPath& pending) {
  create_file(pending.temporary_path());  // HDF5 would follow a link
  return h5::File::create(pending.temporary_path());
}

JournalContent new_journal(const OutputJob& job) {
  std::random_device random;
  return {.id = uint64_t{random()} << 32 | random(),
          .text = Json{{"job", Json::parse(job.identity.empty() ? "{}" : job.identity)}}.dump(),
          .records = {}};
}

void leave_some_for_all(JournalContent& content, const OutputJob& job) {
  int64_t left = job.samples();
  for (const JournalRecord& record : content.records) left -= record.count;
  while (left > 0 && left < job.replicas && !content.records.empty()) {
    left += content.records.back().count;
    content.records.pop_back();
  }
}

void commit_in_order(PartialFile& partial, const std::function<void()>& pulse) {
  if (partial.is_ordered()) return partial.commit();
  AtomicFile ordered(pending_output(partial.output()));
  for (const JournalRecord& record : partial.ordered())
    partial.read_pieces(record, [&](std::span<const std::byte> piece) {
      ordered.write(piece);
      pulse();
    });
  partial.expect_ours();
  ordered.commit();
  partial.remove();
}

std::unique_ptr<OutputFile> create_output(const std::filesystem::path& path, const OutputJob& job) {
  const auto start = [&](auto output) {
    output->start_journal(new_journal(job));
    return output;
  };
  FileDescriptor file = begin_partial(path);
  if (path.extension() == ".jsonl") return start(std::make_unique<JsonlOutput>(path, job, std::move(file)));
  return start(std::make_unique<RowsOutput>(path, job, std::move(file)));
}

std::unique_ptr<OutputFile> resume_output(const std::filesystem::path& path, const OutputJob& job, Unfinished& begun) {
  leave_out_impossible(begun.content, job.samples());
  if (path.extension() == ".jsonl") {
    auto output = std::make_unique<JsonlOutput>(path, job, std::move(begun.file));
    output->resume(begun.content);
    return output;
  }
  auto output = std::make_unique<RowsOutput>(path, job, std::move(begun.file));
  output->keep_intact(begun.content);
  leave_some_for_all(begun.content, job);
  output->start_journal(begun.content);
  return output;
}

std::unique_ptr<OutputFile> join_output(const std::string& shared, const OutputJob& job) {
  const Json made = Json::parse(shared), places = made.at("places");
  const std::filesystem::path path = made.at("output").get<std::string>();
  auto output = std::make_unique<RowsOutput>(path, job, join_partial(path),
                                             Places{.first = places.at("first"), .second = places.at("second")});
  JournalContent content = new_journal(job);
  content.id = made.at("id");
  output->start_journal(content);
  return output;
}

}  // namespace lfm2
