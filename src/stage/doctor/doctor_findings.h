// Derives findings from the facts and trials of all ranks: what is wrong, and the remedy. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "stage/doctor/doctor_facts.h"
#include "stage/job/options.h"

namespace lfm2 {

struct Examination {
  std::vector<RankFacts> ranks;    // in the order of the ranks
  std::vector<TrialFacts> trials;  // in the order of the ranks; empty if there was no trial
  Options options;

  // The number of ranks in one pipeline; all ranks if --replicas does not divide them.
  size_t stages() const;
  bool has_next(size_t rank) const { return (rank + 1) % stages() != 0; }
  bool on_gpus() const;                    // whether a run would compute on GPUs
  std::vector<std::string> hosts() const;  // in the order of the ranks
  std::vector<size_t> ranks_of(const std::string& host) const;
  const RankFacts* writer() const;  // the rank that would write --output; null without
  // The kind of the link to the next rank: "same host", "NVLink", "other host"...
  std::string way_to_next(size_t rank) const;
};

struct Finding {
  bool stops = false;  // true: a run would end with an error; false: a run is or may be slower
  std::string what, todo;
};

// The findings that would stop a run come first.
std::vector<Finding> diagnose(const Examination& examination);

}  // namespace lfm2
