#include "stage/io/lines_output.h"

#include <fmt/format.h>

#include <iterator>
#include <map>
#include <span>

#include "base/json/json.h"
#include "openai/response.h"
#include "stage/io/row_places.h"
#include "stage/io/scores.h"

namespace lfm2 {

namespace {

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
    append(first, count, lines_, results);
    lines_.clear();
  }

 protected:
  virtual void append(int64_t first, int64_t count, std::string_view lines, const HashSum& results) = 0;

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
    const auto into = std::back_inserter(lines_);  // as a line may be large
    if (job_.kind.top_k > 0)
      fmt::format_to(into, "{{\"id\":{},\"top_ids\":[{}],\"top_logprobs\":[{}]}}\n", name, first_, second_);
    else
      fmt::format_to(into, "{{\"id\":{},\"{}\":[{}]}}\n", name, job_.kind.hidden != Hidden::kNone ? "hidden" : "logits",
                     first_);
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
  // The pieces of some samples come in order, though between those of other ranks.
  void receive(const RemotePart& piece) override {
    if (piece.offset == 0) incoming_[piece.first] = partial_.reserve(piece.total);
    const uint64_t begin = incoming_.at(piece.first);
    partial_.write(begin + piece.offset, std::as_bytes(std::span(piece.bytes)));
    if (piece.offset + piece.bytes.size() < piece.total) return;
    incoming_.erase(piece.first);
    partial_.finished({.first = piece.first,
                       .count = piece.count,
                       .offset = begin,
                       .bytes = piece.total,
                       .results = piece.results,
                       .data_hash = piece.data_hash});
  }
  void keep() override { partial_.sync(); }
  void commit() override { commit_in_order(partial_, job_.pulse); }
  void start_over() override { partial_.parts().clear(); }
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
  void append(int64_t first, int64_t count, std::string_view lines, const HashSum& results) override {
    partial_.append(first, count, std::as_bytes(std::span(lines)), results);
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
  std::vector<JournalRecord> kept_;       // --score: the lines of an earlier run
  std::map<int64_t, uint64_t> incoming_;  // where lines begin whose last piece is to come, by their first sample
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
  void append(int64_t first, int64_t count, std::string_view lines, const HashSum& results) override {
    const uint64_t hash = XXH3_64bits(lines.data(), lines.size());
    for (size_t done = 0; done < lines.size(); done += RemotePart::kMaxBytes)
      job_.send({.offset = done,
                 .bytes = std::string(lines.substr(done, RemotePart::kMaxBytes)),
                 .first = first,
                 .count = count,
                 .results = results,
                 .total = lines.size(),
                 .data_hash = hash});
  }
};

}  // namespace

std::unique_ptr<OutputFile> create_lines(const std::filesystem::path& path, const OutputJob& job) {
  auto output = std::make_unique<JsonlOutput>(path, job, begin_partial(path));
  output->start_journal(new_journal(job));
  return output;
}

std::unique_ptr<OutputFile> resume_lines(const std::filesystem::path& path, const OutputJob& job, Unfinished& begun) {
  auto output = std::make_unique<JsonlOutput>(path, job, std::move(begun.file));
  output->resume(begun.content);
  return output;
}

std::unique_ptr<OutputFile> join_lines(const OutputJob& job) { return std::make_unique<RemoteLines>(job); }

}  // namespace lfm2
