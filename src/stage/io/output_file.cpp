// What all forms share, and the choice of a form: .bin (last logits), .h5 (anything), .jsonl (anything, a line a
// sample).
#include "stage/io/output_file.h"

#include <fmt/format.h>

#include <deque>
#include <random>

#include "base/json/json.h"
#include "stage/hdf5/h5.h"
#include "stage/io/lines_output.h"
#include "stage/io/rows_output.h"

namespace lfm2 {

namespace {

std::string text_of_name(std::string_view name) {
  return name.starts_with('"') ? parse_json(name, "the id of a sample").get<std::string>() : std::string(name);
}

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
  if (partial.parts().is_ordered()) return partial.commit();
  AtomicFile ordered(pending_output(partial.output()));
  // Parts of a few bytes each are written together.
  constexpr size_t kTogether = size_t{1} << 20;
  std::vector<std::byte> together;
  const auto write = [&] {
    ordered.write(together);
    together.clear();
    pulse();
  };
  const std::deque<FilePart>& parts = partial.parts().order();
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
  return path.extension() == ".jsonl" ? create_lines(path, job) : create_rows(path, job);
}

std::unique_ptr<OutputFile> resume_output(const std::filesystem::path& path, const OutputJob& job, Unfinished& begun) {
  leave_out_impossible(begun.content, job.samples());
  return path.extension() == ".jsonl" ? resume_lines(path, job, begun) : resume_rows(path, job, begun);
}

std::unique_ptr<OutputFile> join_output(const std::filesystem::path& path, const std::string& shared,
                                        const OutputJob& job) {
  return path.extension() == ".jsonl" ? join_lines(job) : join_rows(path, shared, job);
}

}  // namespace lfm2
