// The samples of a job on one rank: all of them on rank 0, a pipeline's share on its first stage, and of the lists that
// grow with the job only what the rank needs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/mpi_world.h"
#include "stage/io/input_file.h"

namespace lfm2 {

// What one of the pipelines has to do of the samples that are left.
struct Share {
  SampleRange samples;
  int64_t first_token = 0, tokens = 0;
};

using FinishedRanges = std::vector<std::pair<int64_t, int64_t>>;  // first sample and count, ascending

class JobSamples {
 public:
  struct Distribution {
    int stages = 1;                  // ranks of a pipeline
    std::vector<int> listing_ranks;  // that must know where each sample begins; rank 0 always does
    int naming_rank = -1;            // that must know what the samples are called; -1: none
    bool may_leave_out = false;      // leave_out() will be called
    double timeout_seconds = 0;
  };

  // Collective. `all`: the samples of the job on rank 0, empty elsewhere.
  JobSamples(const MpiWorld& world, Samples all, Distribution distribution);

  JobSize size() const { return size_; }                            // of the whole job
  JobSize left() const { return left_; }                            // tokens: once share() was called
  const std::vector<std::string>& names() const { return names_; }  // of the whole job
  void forget_names() { names_.clear(); }
  // The number in the whole job of each sample that is left.
  const SampleNumbers& numbers() const { return numbers_; }

  // Rank 0 before share(), when nothing was left out yet.
  const Samples& all() const { return samples_; }

  // What an earlier run has finished: the same on all ranks, once, before share(). offsets() stay where they are.
  void leave_out(const FinishedRanges& finished);
  // Cuts what is left into a share for each pipeline and passes it on. Collective. Error(kUsage) on rank 0 where there
  // are fewer samples than pipelines.
  void share();

  const Share& share_of(int64_t pipeline) const { return shares_.at(static_cast<size_t>(pipeline)); }
  const Share& own_share() const { return share_of(world_.rank() / distribution_.stages); }
  // First stages: the samples of the own share are the first ones of these, samples [0, count of the share).
  const Samples& own_samples() const { return samples_; }
  SampleRange own_range() const { return {0, own_share().samples.count}; }
  int64_t mean_length() const { return std::max<int64_t>(1, left_.tokens / left_.samples); }

  // Ranks that list, and rank 0: where the samples begin that are left, and those of the whole job.
  const SampleOffsets& offsets_left() const { return world_.rank() == 0 ? samples_.offsets : listed_; }
  const SampleOffsets& offsets() const { return whole_offsets_ ? *whole_offsets_ : offsets_left(); }

 private:
  bool lists(int rank) const;
  void pass_offsets(int to, SampleRange range, SampleOffsets& into);
  void pass_names();

  const MpiWorld& world_;
  Distribution distribution_;
  JobSize size_, left_;
  SampleNumbers numbers_;
  std::vector<Share> shares_;  // [pipelines]
  Samples samples_;            // rank 0: all that are left; first stages: of their share
  SampleOffsets listed_;       // ranks that list, but rank 0: of the samples that are left
  // Of the whole job, where some samples are left out of it and this rank lists.
  std::optional<SampleOffsets> whole_offsets_;
  std::vector<std::string> names_;
};

}  // namespace lfm2
