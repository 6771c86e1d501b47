// The choice of numbers of drafts: a queue of all drafts by their chances, cut where tokens per second are most.
#include "stage/generation/draft_length.h"

#include <algorithm>
#include <cmath>
#include <queue>
#include <utility>

namespace lfm2 {

namespace {

constexpr double kKept = 31.0 / 32;    // of the past tries, after each further one
constexpr double kLeastChance = 0.02;  // of a draft and all before it to be right
// The number of rows changes only for a gain beyond this, and to one that was not measured only for more. So few shapes
// of steps occur, which are fast once they are recorded (StepRunner).
constexpr double kLeastGain = 1.02;
constexpr double kLeastGuessedGain = 1.03;

}  // namespace

void DraftSuccess::on_try() {
  was_due_ = is_due();
  steps_ = 0;
}

void DraftSuccess::on_verified(int64_t drafts, int64_t accepted) {
  if (was_due_ && accepted == drafts && chance() < kFirstHits / kFirstTries) {
    *this = {};  // the text has changed
    return;
  }
  const int64_t tried = accepted + (accepted < drafts ? 1 : 0);
  const double kept = std::pow(kKept, static_cast<double>(tried));
  tries_ = tries_ * kept + static_cast<double>(tried);
  hits_ = hits_ * kept + static_cast<double>(accepted);
}

// Expected tokens in a second.
double DraftLengths::rate(int64_t rows, double tokens, bool drafts) const {
  const StepTimes::Estimate time = times_.estimate(rows, drafts);
  return tokens / time.seconds / (time.measured ? 1 : kLeastGuessedGain);
}

std::vector<int64_t> DraftLengths::choose(int64_t sequences, std::span<const DraftOffer> offers, int64_t most) const {
  std::vector<int64_t> counts(offers.size());
  if (fixed_) {
    for (size_t i = 0; i < offers.size(); ++i) most -= counts[i] = std::min(offers[i].most, most);
    return counts;
  }
  // A step without drafts comes first: all guesses are relative to its time.
  if (times_.estimate(sequences, false).seconds == 0) return counts;
  std::vector<size_t> order;                             // the offers of all drafts, by their chances
  std::priority_queue<std::pair<double, int64_t>> next;  // the chance of each offer's next draft, and minus its index
  for (size_t i = 0; i < offers.size(); ++i)
    if (offers[i].most > 0 && offers[i].chance > kLeastChance) next.emplace(offers[i].chance, -static_cast<int64_t>(i));
  double tokens = static_cast<double>(sequences), best = rate(sequences, tokens, false);
  int64_t rows = sequences;
  double as_before = rows_ == rows ? best : 0;
  while (!next.empty() && std::cmp_less(order.size(), most)) {
    const auto [chance, minus_index] = next.top();
    next.pop();
    const auto i = static_cast<size_t>(-minus_index);
    order.push_back(i);
    tokens += chance;
    if (++counts[i] < offers[i].most && chance * offers[i].chance > kLeastChance)
      next.emplace(chance * offers[i].chance, minus_index);
    const int64_t all = sequences + std::ssize(order);
    if (StepTimes::rounded(all) != all) continue;
    const double found = rate(all, tokens, true);
    if (all == rows_) as_before = found;
    if (found <= best) continue;
    best = found;
    rows = all;
  }
  if (as_before * kLeastGain >= best) rows = rows_;
  std::ranges::fill(counts, 0);
  for (int64_t draft = 0; draft < rows - sequences; ++draft) ++counts[order[static_cast<size_t>(draft)]];
  int64_t left = most - (rows - sequences);
  for (size_t i = 0; i < offers.size(); ++i)
    if (offers[i].due && counts[i] == 0 && offers[i].most > 0 && left-- > 0) counts[i] = 1;
  return counts;
}

}  // namespace lfm2
