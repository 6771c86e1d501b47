// Results on disk, in the form the ending names. The final name appears only once the file is complete; until then
// finished samples lie in a PartialFile, from which another run may continue.
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

// What an output file says about how it was made. Only facts that fix the content: equal jobs give equal bytes.
struct OutputFacts {
  std::string model_type, dtype, split_id, created_by;
  int64_t created = 0;        // the time of the job, kept in its journal for runs that resume it
  std::string cache_dtype{};  // of keys and values, where their rounding changes results: "fp8" or empty
};

// What the answers to lines of /v1/embeddings hold beside the embeddings.
struct EmbeddingLines {
  SampleOffsets tokens;     // of all inputs of each line, added up
  SampleOffsets in_base64;  // 1 for each line whose answer is to be in base64, added up
  const SampleErrors* errors = nullptr;
};

struct OutputJob {
  ResultKind kind;
  int64_t vocab = 0, hidden = 0;                // of the model
  JobSize size;                                 // of the whole job; its tokens are what `offsets` count
  const SampleOffsets* offsets = nullptr;       // of the whole job; null where needs_offsets() says no
  const SampleNames* names = nullptr;           // .jsonl and .h5: see Samples::names
  const SampleOffsets* scored_bytes = nullptr;  // --score: see Samples; null where nobody knows them
  const EmbeddingLines* embeddings = nullptr;   // where the job's lines are /v1/embeddings'
  const Tokenizer* tokenizer = nullptr;         // completions: gives their texts; null: they are only ids
  OutputFacts facts;
  ThreadPool* threads = nullptr;  // that read large results again side by side
  std::string identity = {};      // JSON: a run resumes files of an equal identity; empty: none may
  int64_t replica = 0, replicas = 1;
  std::function<void()> pulse = [] {};  // called while what was written is read again, which may take long

  int64_t samples() const { return size.samples; }
  int64_t rows() const { return kind.positions == Positions::kAll ? size.tokens : size.samples; }
};

// The life of every output, whatever it holds.
class JobOutput {
 public:
  virtual ~JobOutput() = default;
  virtual void keep() = 0;        // the run ends early: what is finished is durable
  virtual void commit() = 0;      // the file is whole, in the order of the samples: give it its name
  virtual void start_over() = 0;  // a benchmark emits the results again: the file holds the last pass
};

class OutputFile : public JobOutput, public ResultConsumer, public FinishedSamples {
 public:
  // The consumer of single rows, where this accepts them instead of consume(); else nullptr. Called once it is known
  // who else writes the file.
  virtual RowConsumer* by_rows() { return nullptr; }
  // Where replicas write one file, the first one makes it and the others join it, each with a rank of its own:
  virtual std::string shared() const { return {}; }  // what join_output() needs
  // Whether what this rank writes into the file is seen at once by the rank that made it.
  virtual bool has_page_cache_of(const std::string&) const { return true; }
  // Before the first rows. Writer w begins at row first_rows[w]; one_page_cache: for all writers.
  virtual void write_with_others(const std::vector<int64_t>&, bool) {}
  // After the last rows, before commit() and keep(): what belongs into blocks of other writers, and what of all
  // writers' belongs into this one's.
  virtual std::string pop_seams() { return {}; }
  virtual void write_seams(std::string_view) {}
  // Emits the rows of samples that an earlier run has finished again. Not for logits in .jsonl.
  virtual void replay(int64_t first, int64_t count, ResultConsumer& consumer) const = 0;
};

// Whether an output of this form cannot be written without knowing where each sample begins: all rows of a sample are
// found by it, and .h5 holds the list itself.
bool needs_offsets(const std::filesystem::path& path, const ResultKind& kind);
// Refuses endings and combinations that the form cannot hold: Error(kUsage). Call before MPI and weights.
void check_output_form(const std::filesystem::path& path, const ResultKind& kind);
std::unique_ptr<OutputFile> create_output(const std::filesystem::path& path, const OutputJob& job);
// Continues the file that a run of the same job left; `begun.content` becomes what of it is intact.
std::unique_ptr<OutputFile> resume_output(const std::filesystem::path& path, const OutputJob& job, Unfinished& begun);
// A journal of `job` with nothing in it yet.
JournalContent new_journal(const OutputJob& job);
// Where fewer samples are left than there are replicas, some are done again, so that each has one.
void leave_some_for_all(JournalContent& content, const OutputJob& job);
// Appended parts become the file, in the order of the samples.
void commit_in_order(PartialFile& partial, const std::function<void()>& pulse);
// Where a file is put together that is to appear at once, or to be copied from. Only while NAME.partial is locked.
PendingPath pending_output(const std::filesystem::path& output);
h5::File create_pending_h5(const PendingPath& pending);
// Writes the names of the samples as `ids`, strings without the quotes of JSON; nothing where there are none.
void write_ids(h5::File& file, const OutputJob& job);
// The attributes that say how a file was made.
void write_facts(h5::File& file, const OutputFacts& facts);
// Error(kData) naming the first sample whose name no .h5 can hold: its strings have no NUL.
void expect_ids_for_h5(const SampleNames& names);
// Writes rows into a .bin or .h5 that another rank is making, on a file system that both see: Error(kCantCreate) where
// the file of that name is another one here. Its commit() only makes sure of the rows: it must come before the maker's.
std::unique_ptr<OutputFile> join_output(const std::filesystem::path& path, const std::string& shared,
                                        const OutputJob& job);

}  // namespace lfm2
