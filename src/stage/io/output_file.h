// Result files in the form that the ending names. The final name appears only once the file is complete. Until then
// finished samples are in a PartialFile, from which another run may continue.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "stage/io/partial_file.h"
#include "stage/io/results.h"
#include "stage/io/samples/sample_errors.h"
#include "stage/io/samples/sample_names.h"

namespace lfm2 {

namespace h5 {
class File;
}
class Tokenizer;

// The facts that an output file records about its job. They depend only on the job, so equal jobs give equal bytes.
struct OutputFacts {
  std::string model_type, dtype, split_id, created_by;
  int64_t created = 0;        // the time of the job, kept in its journal for runs that resume it
  std::string cache_dtype{};  // type of cached keys and values if it changes results: "fp8" or empty
};

// What the answers to lines of /v1/embeddings contain besides the embeddings.
struct EmbeddingLines {
  SampleOffsets tokens;     // prefix sums of the tokens of each line
  SampleOffsets in_base64;  // prefix sums of 1 for each line that asks for base64
  const SampleErrors* errors = nullptr;
};

// What a rank that cannot write the output itself sends to the rank that writes it: a piece of rows or of lines.
struct RemotePart {
  static constexpr size_t kMaxBytes = size_t{1} << 20;  // so that the writer holds little of what others make

  uint64_t offset = 0;  // of the bytes: of rows in the file, of lines in all pieces of the same samples
  std::string bytes = {};
  int64_t first = 0, count = 0;       // samples that are finished with the last piece; count 0: none is
  HashSum results = {};               // of these samples
  uint64_t total = 0, data_hash = 0;  // of lines: the number and the hash of the bytes of all pieces
};
void for_each_field(MaybeConst<RemotePart> auto& part, const auto& each) {  // see base/words.h
  each(part.offset, part.bytes, part.first, part.count, part.results, part.total, part.data_hash);
}

struct OutputJob {
  ResultKind kind;
  int64_t vocab = 0, hidden = 0;                // of the model
  JobSize size;                                 // of the whole job; `tokens` counts in the unit of `offsets`
  const SampleOffsets* offsets = nullptr;       // of the whole job; null unless needs_offsets()
  const SampleNames* names = nullptr;           // .jsonl and .h5: see Samples::names
  const SampleOffsets* scored_bytes = nullptr;  // --score: see Samples; null if unknown
  const EmbeddingLines* embeddings = nullptr;   // if the job's lines are /v1/embeddings'
  const Tokenizer* tokenizer = nullptr;         // decodes completions; null: they have only ids
  OutputFacts facts;
  ThreadPool* threads = nullptr;  // reread large results in parallel
  std::string identity = {};      // JSON: only a run with an equal identity may resume the file; empty: none may
  int64_t replica = 0;
  std::function<void(const RemotePart&)> send = {};  // to the rank that writes the output, from other last stages
  std::function<void()> pulse = [] {};               // called while written data is reread, which may take long

  int64_t samples() const { return size.samples; }
  int64_t rows() const { return kind.positions == Positions::kAll ? size.tokens : size.samples; }
};

// The life cycle of every output, whatever its content.
class JobOutput {
 public:
  virtual ~JobOutput() = default;
  virtual void keep() = 0;        // the run ends early: makes finished samples durable
  virtual void commit() = 0;      // the file is complete: puts samples in order, gives it its final name
  virtual void start_over() = 0;  // a benchmark repeats the job: the file keeps the last pass
};

class OutputFile : public JobOutput, public ResultConsumer, public FinishedSamples {
 public:
  // The consumer of single rows, if this output accepts rows instead of consume(); else nullptr.
  virtual RowConsumer* by_rows() { return nullptr; }
  // With replicas, the first one creates the file and the others join it.
  virtual std::string shared() const { return {}; }  // the argument of join_output()
  // Writes what join_output()'s file has sent. On another thread than consume().
  virtual void receive(const RemotePart&) {}
  // Reads the rows of samples that an earlier run has finished and emits them. Not for logits in .jsonl.
  virtual void replay(int64_t first, int64_t count, ResultConsumer& consumer) const = 0;
};

// Whether this form needs to know where each sample begins: to find all rows of a sample, or because .h5 stores the
// list.
bool needs_offsets(const std::filesystem::path& path, const ResultKind& kind);
// Error(kUsage) for endings and combinations that have no form. Called before MPI and weights.
void check_output_form(const std::filesystem::path& path, const ResultKind& kind);
std::unique_ptr<OutputFile> create_output(const std::filesystem::path& path, const OutputJob& job);
// Continues the file of an earlier run of the same job, and removes records that are not intact from `begun.content`.
std::unique_ptr<OutputFile> resume_output(const std::filesystem::path& path, const OutputJob& job, Unfinished& begun);
// An empty journal of `job`.
JournalContent new_journal(const OutputJob& job);
// Turns appended parts into the final file, in the order of the samples.
void commit_in_order(PartialFile& partial, const std::function<void()>& pulse);
// The path in which the final file, or a source to copy from, is assembled. Only while NAME.partial is locked.
PendingPath pending_output(const std::filesystem::path& output);
h5::File create_pending_h5(const PendingPath& pending);
// Writes the names of the samples as `ids`, strings without JSON's quotes; nothing if there are no names.
void write_ids(h5::File& file, const OutputJob& job);
// Writes the attributes that record how a file was made.
void write_facts(h5::File& file, const OutputFacts& facts);
// Error(kData) naming the first sample whose name contains a NUL, which strings in .h5 cannot have.
void expect_ids_for_h5(const SampleNames& names);
// The output on the last stages of other replicas than the first. Where they see the first one's file in the same page
// cache, they write rows into it; its commit() only syncs the rows, and must be called before the creator's. Two page
// caches of one file would overwrite each other's bytes, so all others use job.send.
std::unique_ptr<OutputFile> join_output(const std::filesystem::path& path, const std::string& shared,
                                        const OutputJob& job);

}  // namespace lfm2
