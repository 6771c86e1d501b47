// The samples of a job. They stay on rank 0, which sends each pipeline what it computes next. Each other rank has only
// those lists, whose size grows with the job, that it needs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/mpi_world.h"
#include "stage/io/inputs/input_file.h"
#include "stage/io/output_file.h"

namespace lfm2 {

using FinishedRanges = std::vector<std::pair<int64_t, int64_t>>;  // first sample and count, ascending

class JobSamples {
 public:
  struct Distribution {
    int stages = 1;                  // number of ranks in a pipeline
    std::vector<int> listing_ranks;  // ranks that need the sample offsets; rank 0 always has them
    std::vector<int> naming_ranks;   // ranks that need the names of the samples; of --score also their bytes
    bool may_leave_out = false;      // whether leave_out() will be called
    bool scores = false;             // --score: offsets count scored tokens
    bool embeddings = false;         // lines of /v1/embeddings: offsets count inputs
    double timeout_seconds = 0;
  };

  // Collective. `all` holds the samples of the job on rank 0, and is empty on the others.
  JobSamples(const MpiWorld& world, Samples all, Distribution distribution);

  JobSize size() const { return size_; }  // the size of the whole job
  JobSize left() const { return left_; }  // the size of the remaining samples
  // The names of all samples of the job, on ranks that have them.
  const SampleNames& names() const { return names_; }
  void forget_names() { names_ = SampleNames(); }
  // The errors that answer some samples, by their numbers in the whole job; on ranks that have the names.
  const SampleErrors& errors() const { return errors_; }
  // The numbers of the remaining samples in the whole job.
  const SampleNumbers& numbers() const { return numbers_; }

  // All samples, on rank 0; after leave_out() the remaining ones.
  const Samples& all() const { return samples_; }

  // Leaves out samples that an earlier run has finished; all ranks pass the same ones. Called at most once. References
  // to offsets() stay valid. Collective.
  void leave_out(const FinishedRanges& finished);
  int64_t mean_length() const { return std::max<int64_t>(1, left_.tokens / left_.samples); }

  // Listing ranks and rank 0: where samples begin, among the remaining samples and in the whole job. Counted in tokens,
  // with --score in scored tokens, for /v1/embeddings in inputs.
  const SampleOffsets& offsets_left() const {
    if (world_.rank() != 0) return listed_;
    return distribution_.scores ? samples_.scored : distribution_.embeddings ? samples_.inputs : samples_.offsets;
  }
  const SampleOffsets& offsets() const { return whole_offsets_ ? *whole_offsets_ : offsets_left(); }
  // --score: prefix sums of the bytes of each sample's scored text, for the whole job; on rank 0, on the last rank of
  // the first pipeline, and on ranks that have the names. Null on other ranks, and without a tokenizer.
  const SampleOffsets* scored_bytes() const { return scored_bytes_.samples() > 0 ? &scored_bytes_ : nullptr; }
  // Lines of /v1/embeddings: what their answers contain, for the whole job; on ranks that have the names.
  const EmbeddingLines& embeddings() const { return embeddings_; }

 private:
  bool lists(int rank) const;
  void pass_offsets(int to, const SampleOffsets& from, SampleOffsets& into);
  template <class Make, class Add>
  void pass_pieces(const char* what, const Make& make, const Add& add);
  void pass_names();
  void pass_errors();
  void pass_embeddings();
  void keep(int64_t count);

  const MpiWorld& world_;
  Distribution distribution_;
  JobSize size_, left_;
  SampleNumbers numbers_;
  Samples samples_;       // rank 0: all remaining samples
  SampleOffsets listed_;  // listing ranks except rank 0: offsets of the remaining samples
  // Offsets of the whole job, on listing ranks, if samples may be left out.
  std::optional<SampleOffsets> whole_offsets_;
  SampleOffsets scored_bytes_;
  SampleNames names_;
  SampleErrors errors_;
  EmbeddingLines embeddings_;
};

}  // namespace lfm2
