// The input of a job in each form, HDF5 as far as our own scan reads it, and the journal of a run.
#include "fuzz/job_targets.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <vector>

#include "base/checked_file.h"
#include "base/thread_pool.h"
#include "fuzz/parser_files.h"
#include "grammar/constraint_cache.h"
#include "openai/request_line.h"
#include "stage/hdf5/h5_scan.h"
#include "stage/io/inputs/input_file.h"
#include "stage/io/inputs/line_samples.h"
#include "stage/io/journal.h"
#include "stage/io/lines/line_reader.h"
#include "text/text_model.h"

namespace lfm2::fuzz {

namespace {

// Lines that were refused have no ids, and are answered with one line.
void check_samples(const Samples& samples, const InputLimits& limits) {
  if (samples.offsets.back() != static_cast<int64_t>(samples.ids.size())) std::abort();
  for (const int32_t id : samples.ids)
    if (id < 0 || id >= limits.vocab) std::abort();
  size_t next_error = 0;
  for (int64_t i = 0; i < samples.count(); ++i) {
    const int64_t length = samples.offsets.length(i);
    const bool refused = next_error < samples.errors.size() && samples.errors.sample(next_error) == i;
    if (!refused && (length < 1 || length > limits.max_positions)) std::abort();
    if (!refused) continue;
    const std::string_view error = samples.errors.text(next_error++);
    if (length != 0 || error.empty() || error.size() > 5000) std::abort();
  }
  if (next_error != samples.errors.size()) std::abort();
}

void read_input(const char* name, Bytes bytes) {
  static const Folder folder;
  const fs::path path = folder.write(name, bytes);
  for (const InputLimits& limits : {InputLimits{1000, 100, 0}, InputLimits{10, 4, 2}})
    expect_only_errors([&] { check_samples(read_samples(path, limits), limits); });
}

// Of /v1/embeddings: every line has inputs, of as many tokens as the model has positions at most.
void check_inputs(const Samples& samples, const LineContext& context) {
  const SampleOffsets &inputs = samples.inputs, &tokens = samples.input_tokens;
  if (inputs.samples() != samples.count() || samples.in_base64.samples() != samples.count()) std::abort();
  if (inputs.back() != tokens.samples() || tokens.back() != samples.offsets.back()) std::abort();
  for (int64_t sample = 0; sample < samples.count(); ++sample)
    if (inputs.length(sample) < 1) std::abort();
  for (int64_t input = 0; input < tokens.samples(); ++input)
    if (tokens.length(input) < 1 || tokens.length(input) > context.max_positions) std::abort();
  for (const int32_t id : samples.tokens(0, samples.offsets.back()))
    if (id < 0 || id >= context.vocab) std::abort();
}

void read_lines_of(const char* name, Bytes bytes, const LineContext& context, int64_t max_samples) {
  static const Folder folder;
  static ThreadPool threads(1);
  const fs::path path = folder.write(name, bytes);
  expect_only_errors([&] {
    LineReader reader(path);
    const Samples samples = read_lines(reader, context, max_samples, threads);
    if (context.embeddings) return check_inputs(samples, context);
    check_samples(samples, {context.vocab, context.max_positions, max_samples});
    if (!context.continues && samples.errors.size() > 0) std::abort();
    for (int64_t sample = 0; sample < samples.count(); ++sample)
      if (!context.continues && is_batch_form(samples.rules[sample].form)) std::abort();
  });
}

}  // namespace

void inputs_bin(Bytes bytes) { read_input("inputs.bin", bytes); }

void inputs_npy(Bytes bytes) { read_input("inputs.npy", bytes); }

// Lines of ids that are packed, in both forms.
void inputs_packed(Bytes bytes) {
  const LineContext context{.vocab = 1000, .max_positions = 100, .text_error = "no tokenizer"};
  for (const char* name : {"inputs.jsonl.gz", "inputs.jsonl.zst"}) read_lines_of(name, bytes, context, 0);
}

// Lines of ids, without a tokenizer.
void inputs_jsonl(Bytes bytes) {
  for (const bool continues : {false, true}) {
    LineContext context{.vocab = 1000, .max_positions = 100, .text_error = "no tokenizer", .continues = continues};
    read_lines_of("inputs.jsonl", bytes, context, 0);
    context.vocab = 10;
    context.max_positions = 4;
    read_lines_of("inputs.jsonl", bytes, context, 2);
  }
}

// Lines of text, prompts, messages and batches, and the same bytes as .txt.
void inputs_text(Bytes bytes) {
  static const TextModel text = [] {
    const Folder folder;
    folder.write("tokenizer.json", bytes_of(small_tokenizer()));
    folder.write("chat_template.jinja",
                 bytes_of("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ tools | tojson }}"));
    return TextModel::open(folder.path());
  }();
  static grammar::ConstraintCache constraints(text.tokenizer(), static_cast<int64_t>(text.tokenizer().size()));
  for (const bool continues : {false, true})
    for (const bool strict : {false, true}) {
      LineContext context{.vocab = static_cast<int64_t>(text.tokenizer().size()),
                          .max_positions = 500,
                          .hidden = 3,
                          .text = &text,
                          .constraints = &constraints,
                          .strict = strict,
                          .continues = continues};
      read_lines_of("inputs.jsonl", bytes, context, 0);
      context.embeddings = !continues;
      if (context.embeddings) read_lines_of("inputs.jsonl", bytes, context, 0);
      context.embeddings = false;
      context.scores = !continues;
      if (context.scores) read_lines_of("inputs.jsonl", bytes, context, 0);
      if (!strict) read_lines_of("inputs.txt", bytes, context, 3);
    }
}

// Only as far as the scan: behind it the library would read chunks, and its bugs are the reason for the scan.
void inputs_h5(Bytes bytes) {
  static const Folder folder;
  const fs::path path = folder.write("inputs.h5", bytes);
  bool chunked = true;
  expect_only_errors([&] {
    const CheckedFile file(path);
    chunked = false;
    for (const auto& [name, dataset] :
         h5::scan(file, {.only = {"input_ids", "offsets", "ids", "attention_mask", "lengths"}}).datasets)
      chunked |= dataset.storage != h5::ScannedDataset::Storage::kContiguous || !dataset.type.little_endian;
  });
  if (!chunked) read_input("inputs.h5", bytes);
}

void h5_scan(Bytes bytes) {
  static const Folder folder;
  const fs::path path = folder.write("any.h5", bytes);
  expect_only_errors([&] {
    const CheckedFile file(path);
    const h5::Scan scan = h5::scan(file);
    uint64_t end = 0;
    for (const h5::Extent& extent : scan.extents) {
      if (extent.first < end || extent.end() > file.size()) std::abort();
      end = extent.end();
    }
    for (const auto& [name, dataset] : scan.datasets) {
      std::vector<std::byte> data(dataset.bytes);
      file.read(dataset.offset, data);
    }
    h5::expect_empty_gaps(file, scan);
  });
}

// Reads the journal as a run with --resume does.
void journal(Bytes bytes) {
  static const Folder folder;
  constexpr int64_t kSamples = 100;
  const fs::path file = folder.write("o.bin.journal", bytes), output = folder.path() / "o.bin";
  expect_only_errors(
      [&] {
        std::optional<JournalContent> content = read_journals(output, kSamples);
        if (!content) return;
        if (content->records.size() > kSamples) std::abort();
        leave_out_impossible(*content, kSamples);
        int64_t next = 0;
        for (const JournalRecord& record : content->records) {
          if (record.first < next || record.count < 1 || record.count > kSamples - record.first) std::abort();
          next = record.first + record.count;
        }
        if (!job_of(*content, file).is_object()) std::abort();
      },
      ExitCode::kCantCreate);
}

}  // namespace lfm2::fuzz
