// How many drafts each sequence of a step gets. The choice changes no token, so it may depend on measured times.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "stage/generation/step_times.h"

namespace lfm2 {

// How often the drafts of a sequence are right.
class DraftSuccess {
 public:
  // The chance of a draft whose predecessors are right.
  double chance() const { return hits_ / tries_; }
  // A sequence without drafts for long tries one, as its text may repeat itself by then.
  bool is_due() const { return steps_ >= kRestSteps; }
  bool will_be_due() const { return steps_ + 1 >= kRestSteps; }  // in the next step
  void on_step() { ++steps_; }                                   // called before each decode step of the sequence
  void on_try();  // the step has drafts, or could have had some because the sequence was due
  void on_verified(int64_t drafts, int64_t accepted);

 private:
  static constexpr int64_t kRestSteps = 64;
  static constexpr double kFirstTries = 4, kFirstHits = 3;  // a guess

  double tries_ = kFirstTries, hits_ = kFirstHits;  // of drafts whose predecessors were right, with a decay
  int64_t steps_ = 0;                               // since the last try
  bool was_due_ = false;                            // at the last try
};

// A sequence that may have drafts in a step.
struct DraftOffer {
  double chance = 0;  // of each draft, if its predecessors are right
  int64_t most = 0;
  bool due = false;  // gets at least one
};

// Chooses the number of drafts of each sequence of a step: all that it offers, or those that make the most tokens in a
// second, by their chances and measured step times.
class DraftLengths {
 public:
  explicit DraftLengths(bool fixed) : fixed_(fixed) {}

  // The numbers of drafts of the `offers`, with `most` drafts in all, in a step of `sequences` sequences.
  std::vector<int64_t> choose(int64_t sequences, std::span<const DraftOffer> offers, int64_t most) const;
  void on_step(int64_t rows) { rows_ = rows; }  // a step with this number of rows got drafts, or chose to have none
  StepTimes& times() { return times_; }

 private:
  double rate(int64_t rows, double tokens, bool drafts) const;

  const bool fixed_;
  StepTimes times_;
  int64_t rows_ = 0;
};

}  // namespace lfm2
