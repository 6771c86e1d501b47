// Completions are written as they finish, and sorted by sample at the end.
#include "stage/io/completions.h"

#include <array>

#include "base/checked_file.h"
#include "openai/response.h"
#include "stage/hdf5/h5.h"

namespace lfm2 {

namespace {

// The common part of both forms: completions are appended as they finish, and put in order at the end.
class AppendedCompletions : public CompletionFile {
 public:
  AppendedCompletions(const std::filesystem::path& path, const OutputJob& job, FileDescriptor file, bool joins_parts)
      : partial_(path, std::move(file), 0, joins_parts), job_(job) {}

  void start_journal(const JournalContent& content) {
    if (!job_.identity.empty()) partial_.start_journal(content);
  }
  void resume(JournalContent& content) {
    partial_.keep_intact(content, job_.pulse);
    std::erase_if(content.records, [&](const JournalRecord& record) { return record.count != 1 || !fits(record); });
    start_journal(content);
    partial_.drop_unfinished();
  }
  void start_over() override { partial_.parts().clear(); }
  void keep() override { partial_.sync(); }

 protected:
  void append(const Completion& completion, std::span<const std::byte> bytes) {
    partial_.append(completion.sample, 1, bytes, CompletionHash::of(completion));
  }
  // Whether the record's bytes can be a completion.
  virtual bool fits(const JournalRecord&) const { return true; }

  PartialFile partial_;
  OutputJob job_;
};

class JsonlCompletions : public AppendedCompletions {
 public:
  JsonlCompletions(const std::filesystem::path& path, const OutputJob& job, FileDescriptor file)
      : AppendedCompletions(path, job, std::move(file), true) {}

  void consume(const Completion& completion) override {
    const auto sample = static_cast<size_t>(completion.sample);
    if (sample % SampleNames::kPiece == 0) job_.names->rest();
    const std::string_view name = job_.names->empty() ? std::string_view() : (*job_.names)[sample];
    const ResponseForm form = ResponseForm::from_word(completion.tag);
    std::string line = is_batch_form(form.form) ? batch_response(completion, form, name, facts_)
                                                : plain_response(completion, form, name, job_.tokenizer);
    line += '\n';
    append(completion, std::as_bytes(std::span(line)));
  }
  void commit() override { commit_in_order(partial_, job_.pulse); }

 private:
  const ResponseFacts facts_{job_.facts.model_type, job_.facts.created, job_.tokenizer,
                             job_.tokenizer != nullptr ? answer_tokens(*job_.tokenizer) : AnswerTokens{}};
};

// Appends each completion as its reason, its number of tokens and its lists; commit() makes the HDF5 file of them.
class H5Completions : public AppendedCompletions {
 public:
  H5Completions(const std::filesystem::path& path, const OutputJob& job, FileDescriptor file)
      : AppendedCompletions(path, job, std::move(file), false) {}

  void consume(const Completion& completion) override {
    std::vector<std::byte> bytes;
    const auto add = [&](auto list) {
      const auto more = std::as_bytes(list);
      bytes.insert(bytes.end(), more.begin(), more.end());
    };
    const Head head{static_cast<int32_t>(completion.reason), static_cast<int32_t>(completion.token_ids.size())};
    add(std::span(head));
    add(std::span(completion.token_ids));
    if (job_.kind.top_k > 0) {
      add(std::span(completion.log_probs));
      add(std::span(completion.top_ids));
      add(std::span(completion.top_log_probs));
    }
    append(completion, bytes);
  }

  void commit() override {
    std::vector<int64_t> offsets{0};
    std::vector<int32_t> reasons;
    const std::deque<FilePart>& parts = partial_.parts().order();
    for (const FilePart& part : parts) {
      const Head head = head_at(part.offset);
      job_.pulse();
      reasons.push_back(head[0]);
      offsets.push_back(offsets.back() + head[1]);
    }
    PendingPath pending = pending_output(partial_.output());
    h5::File file = create_pending_h5(pending);
    const auto tokens = static_cast<uint64_t>(offsets.back()), k = static_cast<uint64_t>(job_.kind.top_k);
    struct List {
      uint64_t place, token_bytes;
    };
    std::vector<List> lists{{file.create_dataset("token_ids", DType::kI32, {tokens}), sizeof(int32_t)}};
    if (k > 0) {
      lists.push_back({file.create_dataset("logprobs", DType::kF32, {tokens}), sizeof(float)});
      lists.push_back({file.create_dataset("top_ids", DType::kI32, {tokens, k}), k * sizeof(int32_t)});
      lists.push_back({file.create_dataset("top_logprobs", DType::kF32, {tokens, k}), k * sizeof(float)});
    }
    const uint64_t reasons_at = file.create_dataset("finish_reasons", DType::kI32, {reasons.size()});
    file.write_i64("offsets", offsets);
    write_ids(file, job_);
    file.set_attribute("format", "lfm2-stage-completions");
    file.set_attribute("finish_reasons", "0 stop, 1 length, 2 error");
    write_facts(file, job_.facts);
    file.close();
    // The data are written without the library, at the offsets that it assigned, after it has written its metadata and
    // closed the file.
    const FileDescriptor raw = open_for_writing(pending.temporary_path());
    std::vector<std::byte> bytes;
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto first = static_cast<uint64_t>(offsets[i]), count = static_cast<uint64_t>(offsets[i + 1]) - first;
      uint64_t next = parts[i].offset + sizeof(Head);
      for (const List& list : lists) {
        bytes.resize(count * list.token_bytes);
        partial_.read(next, bytes);
        write_fully(raw, list.place + first * list.token_bytes, bytes, pending.temporary_path());
        next += bytes.size();
      }
      job_.pulse();
    }
    write_fully(raw, reasons_at, std::as_bytes(std::span(reasons)), pending.temporary_path());
    partial_.expect_ours();
    pending.commit();
    partial_.remove();
  }

 private:
  using Head = std::array<int32_t, 2>;  // the finish reason and the number of tokens

  Head head_at(uint64_t offset) const {
    Head head{};
    partial_.read(offset, std::as_writable_bytes(std::span(head)));
    return head;
  }
  bool fits(const JournalRecord& record) const override {
    if (record.bytes < sizeof(Head)) return false;
    const uint64_t token_bytes = job_.kind.top_k > 0 ? 8 + 8 * static_cast<uint64_t>(job_.kind.top_k) : 4;
    const int32_t tokens = head_at(record.offset)[1];
    return tokens >= 0 && record.bytes == sizeof(Head) + static_cast<uint64_t>(tokens) * token_bytes;
  }
};

}  // namespace

void check_completion_form(const std::filesystem::path& path) {
  if (path.extension() != ".h5" && path.extension() != ".jsonl")
    throw Error(ExitCode::kUsage,
                fmt::format("--output {} with --max-tokens: expected a name ending in .h5 or .jsonl", path.string()));
}

namespace {

std::unique_ptr<AppendedCompletions> open_completions(const std::filesystem::path& path, const OutputJob& job,
                                                      FileDescriptor file) {
  if (path.extension() == ".h5") return std::make_unique<H5Completions>(path, job, std::move(file));
  return std::make_unique<JsonlCompletions>(path, job, std::move(file));
}

}  // namespace

std::unique_ptr<CompletionFile> create_completion_file(const std::filesystem::path& path, const OutputJob& job) {
  auto file = open_completions(path, job, begin_partial(path));
  file->start_journal(new_journal(job));
  return file;
}

std::unique_ptr<CompletionFile> resume_completion_file(const std::filesystem::path& path, const OutputJob& job,
                                                       Unfinished& begun) {
  leave_out_impossible(begun.content, job.samples());
  auto file = open_completions(path, job, std::move(begun.file));
  file->resume(begun.content);
  return file;
}

}  // namespace lfm2
