// What doctor makes of the facts: what looks wrong and what to do. Pure.
#pragma once

#include <string>
#include <vector>

#include "stage/doctor/doctor_facts.h"
#include "stage/job/options.h"

namespace lfm2 {

struct Examination {
  std::vector<RankFacts> ranks;    // in order
  std::vector<TrialFacts> trials;  // of each rank; empty where nothing was tried
  Options options;

  // Ranks of one pipeline; all of them where --replicas does not divide them.
  size_t stages() const;
  bool has_next(size_t rank) const { return (rank + 1) % stages() != 0; }
  bool on_gpus() const;                    // what a run would compute on
  std::vector<std::string> hosts() const;  // in the order of their first ranks
  std::vector<size_t> ranks_of(const std::string& host) const;
  std::string way_to_next(size_t rank) const;  // "same host", "NVLink", "other host"...
};

struct Finding {
  bool stops = false;  // a run; else it costs time, or may
  std::string what, todo;
};

std::vector<Finding> diagnose(const Examination& examination);  // what stops a run comes first

}  // namespace lfm2
