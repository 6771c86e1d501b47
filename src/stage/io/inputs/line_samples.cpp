#include "stage/io/inputs/line_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/thread_pool.h"
#include "openai/request_line.h"
#include "stage/io/inputs/sample_checks.h"
#include "stage/io/lines/line_reader.h"

namespace lfm2 {

namespace {

// A line as it was read by one of the threads.
struct ReadLine {
  RequestLine line;
  std::optional<Error> error = {};
};

ReadLine read_line(const Line& line, const LineContext& context, const LineReader& reader) {
  const std::string where = reader.where(line);
  try {
    if (extension_of_lines(reader.path()) == ".txt") return {parse_text_line(line.text, context, where)};
    return {parse_request_line(line.text, context, where)};
  } catch (const Error& error) {
    return {{}, error};
  }
}

// An answer names the refused line, and of several files the file's name, but no folder: it does not depend on the
// file's place.
std::string without_folder(const std::string& error, const LineReader& reader) {
  const std::string file = reader.name() + ": ";
  if (!error.starts_with(file)) return error;
  const std::string name = reader.paths().size() > 1 ? reader.path().filename().string() + ": " : "";
  return name + error.substr(file.size());
}

void add_line(RequestLine line, Samples& samples) {
  check_total(samples.ids.size() + line.ids.size(), "the input");
  const int64_t sample = samples.count();
  samples.ids.append(line.ids);
  samples.offsets.push_back(static_cast<int64_t>(samples.ids.size()));
  samples.names.add(static_cast<size_t>(sample), line.name);
  if (line.scored > 0) samples.scored.push_back(samples.scored.back() + line.scored);
  if (!line.inputs.empty()) {
    for (const int32_t tokens : line.inputs) samples.input_tokens.push_back(samples.input_tokens.back() + tokens);
    samples.inputs.push_back(samples.input_tokens.samples());
    samples.in_base64.push_back(samples.in_base64.back() + (line.base64 ? 1 : 0));
  }
  if (!line.error.empty()) samples.errors.push_back(sample, line.error);
  samples.rules.push_back(std::move(line.rules));
}

}  // namespace

bool is_input_of_lines(const std::filesystem::path& path) {
  const std::filesystem::path extension = extension_of_lines(path);
  return path == "-" || extension == ".jsonl" || extension == ".txt";
}

LineKind kind_of_lines(LineReader& reader) {
  for (const Line& line : reader.peek())
    if (const LineKind kind = kind_of_line(line.text); kind != LineKind::kNone) return kind;
  return LineKind::kNone;
}

Samples read_lines(LineReader& reader, const LineContext& context, int64_t max_samples, ThreadPool& threads) {
  const InputLimits limits{context.vocab, context.max_positions, max_samples, context.scores};
  Samples samples{.ids = {}, .offsets = {0}};
  const bool batch = (context.continues || context.embeddings) && extension_of_lines(reader.path()) != ".txt" &&
                     is_batch(kind_of_lines(reader));
  std::vector<ReadLine> read;
  std::span<const Line> lines;  // that were not read yet
  std::optional<size_t> file;   // their number
  while (!enough(samples, limits)) {
    // A parsed line needs several times the memory of its text, so few are parsed at a time.
    constexpr size_t kMaxLines = 8192;
    if (lines.empty()) {
      lines = reader.next();
      if (lines.empty()) break;
      if (reader.paths().size() > 1 && file != reader.file_number())
        samples.files.emplace_back(reader.name(), samples.count());
      file = reader.file_number();
    }
    size_t count = std::min(lines.size(), kMaxLines);
    if (max_samples > 0) count = std::min(count, static_cast<size_t>(max_samples - samples.count()));
    read.assign(count, {});
    // Threads claim several lines at a time, because parsing a short line is faster than claiming it.
    constexpr size_t kLines = 16;
    threads.parallel_for((count + kLines - 1) / kLines, [&](size_t part, size_t) {
      for (size_t i = part * kLines; i < std::min(count, (part + 1) * kLines); ++i)
        read[i] = read_line(lines[i], context, reader);
    });
    for (ReadLine& one : read) {
      if (one.error && (!batch || context.strict)) throw *one.error;
      if (one.error) one.line = faulty_line("", LineForm::kCompletion, one.error->what());
      if (!one.line.error.empty() && context.strict) throw Error(ExitCode::kData, one.line.error);
      one.line.error = without_folder(one.line.error, reader);
      if (context.embeddings && !one.line.error.empty()) {
        one.line.ids = {0};
        one.line.inputs = {1};
      }
      add_line(std::move(one.line), samples);
    }
    lines = lines.subspan(count);
  }
  if (samples.count() == 0)
    refuse_empty(reader.paths().size() > 1 ? reader.paths().front().string() : reader.name(), reader.paths().size());
  samples.source = reader.checksum().hex();
  return samples;
}

}  // namespace lfm2
