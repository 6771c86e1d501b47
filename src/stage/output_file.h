// Results on disk, in the form the ending names. Nothing stands under the final name until everything does.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/thread_pool.h"
#include "stage/results.h"

namespace lfm2 {

// What an output file says about how it was made. Only facts that fix the content: equal jobs give equal bytes.
struct OutputFacts {
  std::string model_type, dtype, split_id, created_by;
};

struct OutputJob {
  ResultKind kind;
  int64_t vocab = 0;
  const std::vector<int64_t>* offsets = nullptr;    // [samples + 1], tokens
  const std::vector<std::string>* names = nullptr;  // .jsonl: see Samples::names
  OutputFacts facts;
  ThreadPool* threads = nullptr;  // that write large results side by side

  int64_t samples() const { return static_cast<int64_t>(offsets->size()) - 1; }
  int64_t rows() const { return kind.positions == Positions::kAll ? offsets->back() : samples(); }
};

class OutputFile : public ResultConsumer {
 public:
  virtual void commit() = 0;               // the file is whole: give it its name
  virtual std::string shared() const = 0;  // what join_output() needs
};

// Refuses endings and combinations that the form cannot hold: Error(kUsage). Call before MPI and weights.
void check_output_form(const std::filesystem::path& path, const ResultKind& kind);
// Whether a file can be made there: Error(kCantCreate) now rather than after the job. Makes a file without a name, so
// that nothing is left whatever ends this process meanwhile.
void check_output_place(const std::filesystem::path& path);
std::unique_ptr<OutputFile> create_output(const std::filesystem::path& path, const OutputJob& job);
// Writes rows into a .bin or .h5 that another rank is making, on a file system that both see. Its commit() only makes
// sure of them: it must come before the maker's.
std::unique_ptr<OutputFile> join_output(const std::string& shared, const OutputJob& job);

}  // namespace lfm2
