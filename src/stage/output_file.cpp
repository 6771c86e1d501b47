// The three forms: .bin (last logits), .h5 (anything), .jsonl (anything, a line a sample).
#include "stage/output_file.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

#include "stage/checked_file.h"
#include "stage/h5.h"
#include "stage/json.h"

namespace lfm2 {

namespace {

// Rows at known places of a file: every rank that has rows writes its own, through a mapping of the file, for writing
// with pwrite is one thread at a time for a file. Its blocks are taken first, so that a full disk is an error here and
// not a signal later; where the file system cannot promise them, or map, rows are written with pwrite after all.
class RowPlaces {
 public:
  RowPlaces() = default;
  // `first` and `second`: where the logits begin, or the ids and the log-probabilities.
  RowPlaces(const std::filesystem::path& path, const OutputJob& job, uint64_t first, uint64_t second)
      : path_(path), file_(open_for_writing(path)), job_(job), first_(first), second_(second) {
    const int64_t columns = job.kind.top_k > 0 ? job.kind.top_k : job.vocab;
    const uint64_t end = std::max(first, second) + static_cast<uint64_t>(job.rows() * columns) * sizeof(float);
    mapping_ = map_for_writing(file_, end, path);
  }

  void write(const ResultRows& rows) const {
    static_assert(std::endian::native == std::endian::little);
    const auto write = [&](uint64_t begin, auto values, int64_t columns) {
      const uint64_t place = begin + static_cast<uint64_t>(rows.first * columns) * sizeof(float);
      if (mapping_)
        mapping_.write(place, std::as_bytes(values), job_.threads);
      else
        write_fully(file_, place, std::as_bytes(values), path_);
    };
    if (!rows.logits.empty()) write(first_, rows.logits, job_.vocab);
    if (rows.top_ids.empty()) return;
    write(first_, rows.top_ids, job_.kind.top_k);
    write(second_, rows.top_log_probs, job_.kind.top_k);
  }
  void close() {
    mapping_ = {};
    if (::fsync(file_.get()) != 0 || file_.close() != 0)
      throw Error(ExitCode::kIo, fmt::format("{}: cannot be written: {}", path_.string(), std::strerror(errno)));
  }
  std::string text() const { return Json{{"path", path_.string()}, {"first", first_}, {"second", second_}}.dump(); }

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
  FileMapping mapping_;
  OutputJob job_;
  uint64_t first_ = 0, second_ = 0;
};

// i32 samples, i32 vocab, then a row of fp32 logits a sample.
class BinOutput : public OutputFile {
 public:
  BinOutput(const std::filesystem::path& path, const OutputJob& job) : file_(path) {
    const std::array<int32_t, 2> header{static_cast<int32_t>(job.samples()), static_cast<int32_t>(job.vocab)};
    file_.write_at(0, std::as_bytes(std::span(header)));
    places_ = RowPlaces(file_.temporary_path(), job, sizeof header, 0);
  }
  void take(const ResultRows& rows) override { places_.write(rows); }
  void commit() override {
    places_.close();
    file_.commit();
  }
  std::string shared() const override { return places_.text(); }

 private:
  AtomicFile file_;
  RowPlaces places_;
};

class H5Output : public OutputFile {
 public:
  H5Output(const std::filesystem::path& path, const OutputJob& job)
      : pending_(path), file_(h5::File::create(pending_.temporary_path())) {
    const auto rows = static_cast<uint64_t>(job.rows());
    uint64_t first = 0, second = 0;
    if (job.kind.top_k > 0) {
      first = file_.create_dataset("top_ids", DType::kI32, {rows, static_cast<uint64_t>(job.kind.top_k)});
      second = file_.create_dataset("top_logprobs", DType::kF32, {rows, static_cast<uint64_t>(job.kind.top_k)});
    } else {
      first = file_.create_dataset("logits", DType::kF32, {rows, static_cast<uint64_t>(job.vocab)});
    }
    file_.write_i64("offsets", *job.offsets);
    file_.set_attribute("format", "lfm2-stage-output");
    file_.set_attribute("positions", job.kind.positions == Positions::kAll ? "all" : "last");
    file_.set_attribute("dtype", job.facts.dtype);
    file_.set_attribute("model_type", job.facts.model_type);
    file_.set_attribute("weights_split_id", job.facts.split_id);
    file_.set_attribute("created_by", job.facts.created_by);
    places_ = RowPlaces(pending_.temporary_path(), job, first, second);
  }
  // Past HDF5, which would copy on one thread: the datasets are contiguous, of this machine's own types.
  void take(const ResultRows& rows) override { places_.write(rows); }
  void commit() override {
    places_.close();
    file_.close();
    pending_.commit();
  }
  std::string shared() const override { return places_.text(); }

 private:
  PendingPath pending_;
  h5::File file_;
  RowPlaces places_;
};

// The rows of another replica, into the file that the first one made.
class JoinedOutput : public OutputFile {
 public:
  explicit JoinedOutput(RowPlaces places) : places_(std::move(places)) {}
  void take(const ResultRows& rows) override { places_.write(rows); }
  void commit() override { places_.close(); }
  std::string shared() const override { return places_.text(); }

 private:
  RowPlaces places_;
};

// One object a sample: "id" (the input's, else its number), then "logits" or "top_ids" and "top_logprobs": of the last
// position a list, of all positions a list of lists.
class JsonlOutput : public OutputFile {
 public:
  JsonlOutput(const std::filesystem::path& path, const OutputJob& job) : file_(path), job_(job) {}

  void take(const ResultRows& rows) override {
    if (rows.first == 0) start_over();
    const int64_t vocab = job_.vocab, top_k = job_.kind.top_k;
    for (int64_t row = 0; row < rows.count; ++row) {
      if (top_k > 0) {
        append(first_, rows.top_ids.subspan(static_cast<size_t>(row * top_k), static_cast<size_t>(top_k)));
        append(second_, rows.top_log_probs.subspan(static_cast<size_t>(row * top_k), static_cast<size_t>(top_k)));
      } else {
        append(first_, rows.logits.subspan(static_cast<size_t>(row * vocab), static_cast<size_t>(vocab)));
      }
      const int64_t next = rows.first + row + 1;
      if (next == (all() ? (*job_.offsets)[static_cast<size_t>(sample_ + 1)] : sample_ + 1)) write_line();
    }
  }
  void commit() override { file_.commit(); }
  std::string shared() const override { return {}; }

 private:
  bool all() const { return job_.kind.positions == Positions::kAll; }

  // A benchmark hands out the rows of the job again: the file holds one pass.
  void start_over() {
    sample_ = 0;
    written_ = 0;
    first_.clear();
    second_.clear();
  }

  // Shortest text that reads back as the same float; JSON has no infinities or NaN: null.
  template <class T>
  void append(std::string& text, std::span<const T> values) const {
    if (!text.empty()) text += ',';
    if (all()) text += '[';
    bool first = true;
    for (T value : values) {
      if (!first) text += ',';
      first = false;
      if (value - value == T{})
        fmt::format_to(std::back_inserter(text), "{}", value);
      else
        text += "null";
    }
    if (all()) text += ']';
  }

  void write_line() {
    const std::string name = job_.names->empty() || (*job_.names)[static_cast<size_t>(sample_)].empty()
                                 ? std::to_string(sample_)
                                 : (*job_.names)[static_cast<size_t>(sample_)];
    const std::string line = job_.kind.top_k > 0 ? fmt::format("{{\"id\":{},\"top_ids\":[{}],\"top_logprobs\":[{}]}}\n",
                                                               name, first_, second_)
                                                 : fmt::format("{{\"id\":{},\"logits\":[{}]}}\n", name, first_);
    file_.write_at(written_, std::as_bytes(std::span(line)));
    written_ += line.size();
    first_.clear();
    second_.clear();
    ++sample_;
  }

  AtomicFile file_;
  OutputJob job_;
  int64_t sample_ = 0;
  uint64_t written_ = 0;
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
  if (std::filesystem::is_directory(path))
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

std::unique_ptr<OutputFile> create_output(const std::filesystem::path& path, const OutputJob& job) {
  if (path.extension() == ".bin") return std::make_unique<BinOutput>(path, job);
  if (path.extension() == ".h5") return std::make_unique<H5Output>(path, job);
  return std::make_unique<JsonlOutput>(path, job);
}

std::unique_ptr<OutputFile> join_output(const std::string& shared, const OutputJob& job) {
  const Json places = Json::parse(shared);
  return std::make_unique<JoinedOutput>(
      RowPlaces(places.at("path").get<std::string>(), job, places.at("first"), places.at("second")));
}

}  // namespace lfm2
