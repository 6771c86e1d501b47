// The samples of a job on one rank. Rank 0 has all samples. Of a scoring job the first stage of a pipeline has those of
// its share; those of a generation stay on rank 0, which sends each replica one request at a time. Each rank has only
// those lists, whose size grows with the job, that it needs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/mpi_world.h"
#include "stage/io/input_file.h"
#include "stage/io/output_file.h"

namespace lfm2 {

// The part of the samples that one pipeline computes.
struct Share {
  SampleRange samples;
  int64_t first_token = 0, tokens = 0;
  int64_t first_scored = 0;  // --score: scored tokens in preceding shares
};
void for_each_field(MaybeConst<Share> auto& share, const auto& each) {  // see base/words.h
  each(share.samples.first, share.samples.count, share.first_token, share.tokens, share.first_scored);
}

using FinishedRanges = std::vector<std::pair<int64_t, int64_t>>;  // first sample and count, ascending

class JobSamples {
 public:
  struct Distribution {
    int stages = 1;                  // number of ranks in a pipeline
    bool stay = false;               // the samples stay on rank 0
    std::vector<int> listing_ranks;  // ranks that need the sample offsets; rank 0 always has them
    int naming_rank = -1;            // rank that needs the names of the samples; -1: none
    bool may_leave_out = false;      // whether leave_out() will be called
    bool scores = false;             // --score: offsets count scored tokens
    bool embeddings = false;         // lines of /v1/embeddings: offsets count inputs; only one pipeline
    double timeout_seconds = 0;
  };

  // Collective. `all` holds the samples of the job on rank 0, and is empty on the others.
  JobSamples(const MpiWorld& world, Samples all, Distribution distribution);

  JobSize size() const { return size_; }  // the size of the whole job
  JobSize left() const { return left_; }  // the size of the remaining samples; its tokens are known after share()
  // The names of all samples of the job, on ranks that have them.
  const SampleNames& names() const { return names_; }
  void forget_names() { names_ = SampleNames(); }
  // The errors that answer some samples, by their numbers in the whole job; on ranks that have the names.
  const SampleErrors& errors() const { return errors_; }
  // The numbers of the remaining samples in the whole job.
  const SampleNumbers& numbers() const { return numbers_; }

  // All samples, on rank 0, before leave_out() and share().
  const Samples& all() const { return samples_; }

  // Leaves out samples that an earlier run has finished; all ranks pass the same ones. Called at most once, before
  // share(). References to offsets() stay valid.
  void leave_out(const FinishedRanges& finished);
  // Cuts the remaining samples into a share for each pipeline, and sends each share to the first stage of its pipeline.
  // If samples stay on rank 0, all of them are the first pipeline's share. Collective. Error(kUsage) on rank 0 if there
  // are fewer samples than pipelines that get a share.
  void share();

  const Share& share_of(int64_t pipeline) const { return shares_.at(static_cast<size_t>(pipeline)); }
  const Share& own_share() const { return share_of(world_.rank() / distribution_.stages); }
  // First stages: own_range() of these samples is this pipeline's share. On rank 0 the shares of other pipelines
  // follow.
  const Samples& own_samples() const { return samples_; }
  SampleRange own_range() const { return {0, own_share().samples.count}; }
  int64_t mean_length() const { return std::max<int64_t>(1, left_.tokens / left_.samples); }

  // Listing ranks and rank 0: where samples begin, among the remaining samples and in the whole job. Counted in tokens,
  // with --score in scored tokens, for /v1/embeddings in inputs.
  const SampleOffsets& offsets_left() const {
    if (world_.rank() != 0) return listed_;
    return distribution_.scores ? samples_.scored : distribution_.embeddings ? samples_.inputs : samples_.offsets;
  }
  const SampleOffsets& offsets() const { return whole_offsets_ ? *whole_offsets_ : offsets_left(); }
  // --score: prefix sums of the bytes of each sample's scored text, for the whole job; on rank 0 and on the last rank
  // of the first pipeline. Null on other ranks, and without a tokenizer.
  const SampleOffsets* scored_bytes() const { return scored_bytes_.samples() > 0 ? &scored_bytes_ : nullptr; }
  // Lines of /v1/embeddings: what their answers contain, for the whole job; on the rank that has the names.
  const EmbeddingLines& embeddings() const { return embeddings_; }

 private:
  bool lists(int rank) const;
  void pass_offsets(int to, SampleRange range, const SampleOffsets& from, SampleOffsets& into);
  template <class Make, class Add>
  void pass_pieces(const char* what, const Make& make, const Add& add);
  void pass_names();
  void pass_errors();
  void pass_embeddings();

  const MpiWorld& world_;
  Distribution distribution_;
  JobSize size_, left_;
  SampleNumbers numbers_;
  std::vector<Share> shares_;  // [pipelines]
  Samples samples_;            // rank 0: all remaining samples; first stages: those of their share
  SampleOffsets listed_;       // listing ranks except rank 0: offsets of the remaining samples
  // Offsets of the whole job, on listing ranks, if samples may be left out.
  std::optional<SampleOffsets> whole_offsets_;
  SampleOffsets scored_bytes_;
  SampleNames names_;
  SampleErrors errors_;
  EmbeddingLines embeddings_;
};

}  // namespace lfm2
