// The choice of the number of drafts from the share of right ones.
#include <cmath>

#include "stage/generation/drafter.h"

namespace lfm2 {

namespace {

// A draft pays if it is right with at least this probability: about where a further row of a step costs what a token
// brings, for one sequence of a mixture of experts.
constexpr double kLeastChance = 1.0 / 3;
constexpr double kKept = 31.0 / 32;  // of the past tries, after each further one
constexpr int64_t kRestSteps = 64;   // decode steps between two tries while drafts do not pay

}  // namespace

int64_t DraftLength::limit() const {
  if (fixed_) return most_;
  const double right = hits_ / tries_;
  int64_t drafts = 0;
  for (double chance = right; drafts < most_ && chance >= kLeastChance; chance *= right) ++drafts;
  return drafts > 0 ? drafts : skipped_ < kRestSteps ? 0 : std::min<int64_t>(1, most_);
}

void DraftLength::on_verified(int64_t drafts, int64_t accepted) {
  const int64_t tried = accepted + (accepted < drafts ? 1 : 0);
  const double kept = std::pow(kKept, static_cast<double>(tried));
  tries_ = tries_ * kept + static_cast<double>(tried);
  hits_ = hits_ * kept + static_cast<double>(accepted);
  skipped_ = 0;
}

}  // namespace lfm2
