// The three forms: .bin (last logits), .h5 (anything), .jsonl (anything, a line a sample).
#include "stage/io/output_file.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <random>

#include "base/checked_file.h"
#include "base/json/json.h"
#include "openai/response.h"
#include "stage/hdf5/h5.h"
#include "stage/io/row_places.h"
#include "stage/io/scores.h"

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

std::string text_of_name(std::string_view name) {
  return name.starts_with('"') ? parse_json(name, "the id of a sample").get<std::string>() : std::string(name);
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
    partial_.finished(first, count, results);
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
    if (part.count > 0) partial_.finished(part.first, part.count, part.results);
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
      job_.send({.offset = offset, .bytes = {reinterpret_cast<const char*>(bytes.data()), bytes.size()}});
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

// One object a sample: "id" (the input's, else its number), then "logits", "hidden", or "top_ids" and "top_logprobs":
// of the last position a list, of all positions a list of lists. With --score a ScoreLine, of /v1/embeddings an
// EmbeddingResponse.
class JsonlLines : public OutputFile {
 public:
  explicit JsonlLines(const OutputJob& job) : job_(job) {}
  void consume(const ResultRows& rows) override {
    const int64_t columns = row_columns(job_), top_k = job_.kind.top_k;
    for (int64_t row = 0; row < rows.count; ++row) {
      if (job_.kind.score) {
        scores_.add(rows.log_probs[static_cast<size_t>(row)], rows.is_greedy[static_cast<size_t>(row)] != 0);
      } else if (top_k > 0) {
        append(first_, rows.top_ids.subspan(static_cast<size_t>(row * top_k), static_cast<size_t>(top_k)));
        append(second_, rows.log_probs.subspan(static_cast<size_t>(row * top_k), static_cast<size_t>(top_k)));
      } else {
        const auto values = rows.logits.subspan(static_cast<size_t>(row * columns), static_cast<size_t>(columns));
        job_.kind.embeddings ? add_embedding(rows.first + row, values) : append(first_, values);
      }
      const int64_t place = rows.first + row;
      if (!all())
        add_line(place);
      else if (const int64_t sample = job_.offsets->sample_of(place); (*job_.offsets)[sample + 1] == place + 1)
        add_line(sample);
    }
  }
  void finished(int64_t first, int64_t count, const HashSum& results) override {
    append({.bytes = std::exchange(lines_, {}), .first = first, .count = count, .results = results});
  }

 protected:
  virtual void append(const RemotePart& lines) = 0;

  OutputJob job_;

 private:
  bool all() const { return job_.kind.positions == Positions::kAll; }

  template <class T>
  void append(std::string& text, std::span<const T> values) const {
    if (!text.empty()) text += ',';
    if (all()) text += '[';
    append_values(text, values);
    if (all()) text += ']';
  }

  void add_embedding(int64_t row, std::span<const float> state) {
    embeddings_.add(state, job_.embeddings->in_base64.length(job_.offsets->sample_of(row)) == 1);
  }

  void add_line(int64_t sample) {
    if (sample % static_cast<int64_t>(SampleNames::kPiece) == 0) job_.names->rest();
    const std::string_view given =
        job_.names->empty() ? std::string_view() : (*job_.names)[static_cast<size_t>(sample)];
    if (job_.kind.embeddings) {
      lines_ += embeddings_.pop_line(sample, given, job_.facts.model_type, job_.embeddings->tokens.length(sample),
                                     job_.embeddings->errors->of(sample));
      return;
    }
    const std::string name = given.empty() ? std::to_string(sample) : std::string(given);
    if (job_.kind.score) {
      lines_ += scores_.pop_line(name, job_.scored_bytes != nullptr ? job_.scored_bytes->length(sample) : -1);
      return;
    }
    lines_ += job_.kind.top_k > 0
                  ? fmt::format("{{\"id\":{},\"top_ids\":[{}],\"top_logprobs\":[{}]}}\n", name, first_, second_)
                  : fmt::format("{{\"id\":{},\"{}\":[{}]}}\n", name,
                                job_.kind.hidden != Hidden::kNone ? "hidden" : "logits", first_);
    first_.clear();
    second_.clear();
  }

  std::string lines_;             // of samples not yet reported as finished
  std::string first_, second_;    // the current sample's values so far
  ScoreLine scores_;              // the same with --score
  EmbeddingResponse embeddings_;  // the same of a line of /v1/embeddings
};

class JsonlOutput : public JsonlLines {
 public:
  JsonlOutput(const std::filesystem::path& path, const OutputJob& job, FileDescriptor file)
      : JsonlLines(job), partial_(path, std::move(file), 0, true) {}

  void start_journal(const JournalContent& content) {
    if (!job_.identity.empty()) partial_.start_journal(content);
  }
  void resume(JournalContent& content) {
    partial_.keep_intact(content, job_.pulse);
    start_journal(content);
    partial_.drop_unfinished();
    if (job_.kind.score) kept_.assign(content.records.begin(), content.records.end());
  }
  void receive(const RemotePart& lines) override { append(lines); }
  void keep() override { partial_.sync(); }
  void commit() override { commit_in_order(partial_, job_.pulse); }
  void start_over() override { partial_.start_over(); }
  // Reads scores from the lines of an earlier run; logits are not read back.
  void replay(int64_t first, int64_t count, ResultConsumer& consumer) const override {
    expect(job_.kind.score, "JsonlOutput: logits are not read back");
    for (const JournalRecord& record : kept_) {
      if (record.first < first || record.first >= first + count) continue;
      std::string lines(record.bytes, '\0');
      partial_.read(record.offset, std::as_writable_bytes(std::span(lines)));
      replay_lines(lines, record.first, consumer);
      job_.pulse();
    }
  }

 private:
  void append(const RemotePart& lines) override {
    partial_.append(lines.first, lines.count, std::as_bytes(std::span(lines.bytes)), lines.results);
  }
  void replay_lines(std::string_view lines, int64_t sample, ResultConsumer& consumer) const {
    for (size_t at = 0; at < lines.size(); ++sample) {
      const size_t end = lines.find('\n', at);
      const LineScores scores = parse_score_line(lines.substr(at, end - at), partial_.path().string());
      consumer.consume({.first = (*job_.offsets)[sample],
                        .count = std::ssize(scores.log_probs),
                        .is_greedy = scores.is_greedy,
                        .log_probs = scores.log_probs});
      at = end + 1;
    }
  }

  PartialFile partial_;
  std::vector<JournalRecord> kept_;  // --score: the lines of an earlier run
};

// Lines of a .jsonl that another rank writes.
class RemoteLines : public JsonlLines {
 public:
  using JsonlLines::JsonlLines;
  void keep() override {}
  void commit() override {}
  void start_over() override {}
  void replay(int64_t, int64_t, ResultConsumer&) const override { expect(false, "RemoteLines: has no lines"); }

 private:
  void append(const RemotePart& lines) override {
    constexpr size_t kMaxBytes = size_t{1} << 30;
    if (lines.bytes.size() > kMaxBytes)
      throw Error(ExitCode::kUnavailable,
                  fmt::format("samples {} to {}: {} bytes of lines, with --replicas expected at most {}: use one "
                              "pipeline or an .h5",
                              lines.first, lines.first + lines.count - 1, lines.bytes.size(), kMaxBytes));
    job_.send(lines);
  }
};

}  // namespace

bool needs_offsets(const std::filesystem::path& path, const ResultKind& kind) {
  return kind.positions == Positions::kAll || path.extension() == ".h5";
}

void check_output_form(const std::filesystem::path& path, const ResultKind& kind) {
  const std::string ending = path.extension();
  if (ending != ".bin" && ending != ".h5" && ending != ".jsonl")
    throw Error(ExitCode::kUsage,
                fmt::format("--output {}: expected a name ending in .bin, .h5 or .jsonl", path.string()));
  if (kind.positions == Positions::kNone)
    throw Error(ExitCode::kUsage,
                fmt::format("--output {} with --logits none: nothing would be written", path.string()));
  if (ending == ".bin" && (kind.positions != Positions::kLast || kind.top_k > 0 || kind.hidden != Hidden::kNone))
    throw Error(
        ExitCode::kUsage,
        fmt::format("--output {}: .bin holds last-position logits only, expected .h5 or .jsonl", path.string()));
}

PendingPath pending_output(const std::filesystem::path& output) { return {output, pending_path(output)}; }

h5::File create_pending_h5(const PendingPath& pending) {
  create_file(pending.temporary_path());  // HDF5 would follow a link
  return h5::File::create(pending.temporary_path());
}

void write_facts(h5::File& file, const OutputFacts& facts) {
  file.set_attribute("dtype", facts.dtype);
  if (!facts.cache_dtype.empty()) file.set_attribute("cache_dtype", facts.cache_dtype);
  file.set_attribute("model_type", facts.model_type);
  file.set_attribute("weights_split_id", facts.split_id);
  file.set_attribute("created_by", facts.created_by);
}

void write_ids(h5::File& file, const OutputJob& job) {
  if (job.names == nullptr || job.names->empty()) return;
  file.write_texts("ids", job.samples(), [&](int64_t i) {
    const auto sample = static_cast<size_t>(i);
    if (sample % SampleNames::kPiece == 0) {
      job.names->rest();
      job.pulse();
    }
    return text_of_name((*job.names)[sample]);
  });
}

void expect_ids_for_h5(const SampleNames& names) {
  for (size_t sample = 0; sample < names.size(); ++sample) {
    if (sample % SampleNames::kPiece == 0) names.rest();
    const std::string_view name = names[sample];
    if (name.find("\\u0000") != std::string_view::npos && text_of_name(name).find('\0') != std::string::npos)
      throw Error(ExitCode::kData,
                  fmt::format("sample {}: its id {} has a NUL, which no string of .h5 can hold: expected "
                              "--output with .jsonl, or another id",
                              sample, name));
  }
}

JournalContent new_journal(const OutputJob& job) {
  std::random_device random;
  return {
      .id = uint64_t{random()} << 32 | random(),
      .text = json_text(Json{{"created", job.facts.created},
                             {"job", parse_json(job.identity.empty() ? "{}" : job.identity, "identity of the job")}}),
      .records = {}};
}

void commit_in_order(PartialFile& partial, const std::function<void()>& pulse) {
  if (partial.is_ordered()) return partial.commit();
  AtomicFile ordered(pending_output(partial.output()));
  // Parts of a few bytes each are written together.
  constexpr size_t kTogether = size_t{1} << 20;
  std::vector<std::byte> together;
  const auto write = [&] {
    ordered.write(together);
    together.clear();
    pulse();
  };
  const std::deque<FilePart>& parts = partial.order();
  for (auto part = parts.begin(); part != parts.end();) {
    const uint64_t begin = part->offset;
    uint64_t end = begin;
    for (; part != parts.end() && part->offset == end; ++part) end += part->bytes;  // those side by side in the file
    partial.read_pieces(begin, end - begin, [&](std::span<const std::byte> piece) {
      together.insert(together.end(), piece.begin(), piece.end());
      if (together.size() >= kTogether) write();
    });
  }
  write();
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
  output->start_journal(begun.content);
  return output;
}

std::unique_ptr<OutputFile> join_output(const std::filesystem::path& path, const std::string& shared,
                                        const OutputJob& job) {
  if (path.extension() == ".jsonl") return std::make_unique<RemoteLines>(job);
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
