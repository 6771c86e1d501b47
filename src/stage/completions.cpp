// Lines are written as samples finish and put into the samples' order at the end; .h5 is written at the end.
#include "stage/completions.h"

#include "stage/checked_file.h"
#include "stage/h5.h"
#include "stage/json.h"

namespace lfm2 {

namespace {

class JsonlCompletions : public CompletionFile {
 public:
  JsonlCompletions(const std::filesystem::path& path, const OutputJob& job)
      : path_(path), unordered_(path.string() + ".unordered"), job_(job), lines_(static_cast<size_t>(job.samples())) {}

  void start_over() override {
    written_ = 0;
    lines_.assign(lines_.size(), {});
  }
  void take(const Completion& completion) override {
    const auto sample = static_cast<size_t>(completion.sample);
    const bool named = !job_.names->empty() && !(*job_.names)[sample].empty();
    std::string line =
        fmt::format("{{\"id\":{},\"token_ids\":", named ? (*job_.names)[sample] : std::to_string(sample));
    line += Json(completion.token_ids).dump();
    line += fmt::format(",\"finish_reason\":\"{}\"", name(completion.reason));
    if (job_.kind.top_k > 0) {
      const auto k = static_cast<size_t>(job_.kind.top_k);
      line += ",\"logprobs\":";
      append_list(line, std::span(completion.log_probs));
      line += ",\"top_ids\":";
      append_rows(line, std::span(completion.top_ids), k);
      line += ",\"top_logprobs\":";
      append_rows(line, std::span(completion.top_log_probs), k);
    }
    line += "}\n";
    unordered_.write_at(written_, std::as_bytes(std::span(line)));
    lines_[sample] = {written_, line.size()};
    written_ += line.size();
  }
  void commit() override {
    const CheckedFile lines(unordered_.temporary_path());
    AtomicFile ordered(path_);
    std::vector<std::byte> block;
    for (const Line& line : lines_) {
      block.resize(line.bytes);
      lines.read(line.first, block);
      ordered.write(block);
    }
    ordered.commit();
  }

 private:
  struct Line {
    uint64_t first = 0;
    size_t bytes = 0;
  };
  // Shortest text that reads back as the same float; JSON has no infinities or NaN: null.
  template <class T>
  static void append_list(std::string& text, std::span<const T> values) {
    text += '[';
    for (const T& value : values) {
      if (&value != values.data()) text += ',';
      text += value - value == T{} ? fmt::format("{}", value) : "null";
    }
    text += ']';
  }
  template <class T>
  static void append_rows(std::string& text, std::span<const T> values, size_t columns) {
    text += '[';
    for (size_t at = 0; at < values.size(); at += columns) {
      if (at > 0) text += ',';
      append_list(text, values.subspan(at, columns));
    }
    text += ']';
  }

  std::filesystem::path path_;
  AtomicFile unordered_;  // never committed
  OutputJob job_;
  std::vector<Line> lines_;  // [samples]: where each one's lies
  uint64_t written_ = 0;
};

class H5Completions : public CompletionFile {
 public:
  H5Completions(const std::filesystem::path& path, const OutputJob& job)
      : pending_(path), job_(job), completions_(static_cast<size_t>(job.samples())) {}

  void start_over() override { completions_.assign(completions_.size(), {}); }
  void take(const Completion& completion) override {
    completions_[static_cast<size_t>(completion.sample)] = completion;
  }
  void commit() override {
    h5::File file = h5::File::create(pending_.temporary_path());
    std::vector<int64_t> offsets{0};
    std::vector<int32_t> reasons;
    for (const Completion& completion : completions_) {
      offsets.push_back(offsets.back() + static_cast<int64_t>(completion.token_ids.size()));
      reasons.push_back(completion.reason == FinishReason::kStop ? 0 : 1);
    }
    const auto tokens = static_cast<uint64_t>(offsets.back()), k = static_cast<uint64_t>(job_.kind.top_k);
    std::vector<Pending> writes;
    write(file, writes, "token_ids", DType::kI32, {tokens}, &Completion::token_ids);
    if (k > 0) {
      write(file, writes, "logprobs", DType::kF32, {tokens}, &Completion::log_probs);
      write(file, writes, "top_ids", DType::kI32, {tokens, k}, &Completion::top_ids);
      write(file, writes, "top_logprobs", DType::kF32, {tokens, k}, &Completion::top_log_probs);
    }
    const uint64_t reasons_at = file.create_dataset("finish_reasons", DType::kI32, {reasons.size()});
    file.write_i64("offsets", offsets);
    file.set_attribute("format", "lfm2-stage-completions");
    file.set_attribute("finish_reasons", "0 stop, 1 length");
    file.set_attribute("dtype", job_.facts.dtype);
    file.set_attribute("model_type", job_.facts.model_type);
    file.set_attribute("weights_split_id", job_.facts.split_id);
    file.set_attribute("created_by", job_.facts.created_by);
    const FileDescriptor raw = open_for_writing(pending_.temporary_path());
    for (const Pending& pending : writes) write_fully(raw, pending.first, pending.bytes, pending_.temporary_path());
    write_fully(raw, reasons_at, std::as_bytes(std::span(reasons)), pending_.temporary_path());
    file.close();
    pending_.commit();
  }

 private:
  struct Pending {
    uint64_t first = 0;
    std::vector<std::byte> bytes;
  };
  // The lists of all samples back to back. Past HDF5, once its own metadata are there.
  template <class T>
  void write(h5::File& file, std::vector<Pending>& writes, const std::string& dataset, DType dtype,
             const std::vector<uint64_t>& dims, std::vector<T> Completion::*list) {
    Pending pending{file.create_dataset(dataset, dtype, dims), {}};
    for (const Completion& completion : completions_) {
      const auto bytes = std::as_bytes(std::span(completion.*list));
      pending.bytes.insert(pending.bytes.end(), bytes.begin(), bytes.end());
    }
    if (!pending.bytes.empty()) writes.push_back(std::move(pending));
  }

  PendingPath pending_;
  OutputJob job_;
  std::vector<Completion> completions_;  // [samples]
};

}  // namespace

std::string_view name(FinishReason reason) { return reason == FinishReason::kStop ? "stop" : "length"; }

void CompletionHash::take(const Completion& completion) {
  sum_.add(std::as_bytes(std::span(completion.token_ids)), static_cast<uint64_t>(completion.sample));
}

void check_completion_form(const std::filesystem::path& path) {
  if (path.extension() != ".h5" && path.extension() != ".jsonl")
    throw Error(ExitCode::kUsage,
                fmt::format("--output {} with --generate: expected a name ending in .h5 or .jsonl", path.string()));
}

std::unique_ptr<CompletionFile> create_completion_file(const std::filesystem::path& path, const OutputJob& job) {
  if (path.extension() == ".h5") return std::make_unique<H5Completions>(path, job);
  return std::make_unique<JsonlCompletions>(path, job);
}

}  // namespace lfm2
