#include "serve/replica_choice.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "base/split_mix.h"

namespace lfm2::serve {

namespace {
constexpr int64_t kMoreSequences = 4, kShareOfMore = 4;  // more than the least loaded: 4, or a quarter
}

// An add() uses all pages of a prompt, so a remembered page has all pages before it.
int64_t SentPages::count_known(std::span<const uint64_t> pages) const {
  const auto end =
      std::partition_point(pages.begin(), pages.end(), [&](uint64_t page) { return places_.contains(page); });
  return end - pages.begin();
}

// From the last page to the first, so that the oldest page of a prompt that is forgotten is its last one.
void SentPages::add(std::span<const uint64_t> pages) {
  for (size_t at = pages.size(); at-- > 0;) {
    if (const auto found = places_.find(pages[at]); found != places_.end()) {
      by_use_.splice(by_use_.begin(), by_use_, found->second);
      continue;
    }
    by_use_.push_front(pages[at]);
    places_[pages[at]] = by_use_.begin();
  }
  for (; std::ssize(places_) > capacity_; by_use_.pop_back()) places_.erase(by_use_.back());
}

ReplicaChoice::ReplicaChoice(size_t replicas, const Capacity& each)
    : each_(each), loads_(replicas, Load{.sent = SentPages(each.kept_pages)}) {}

PromptPages ReplicaChoice::pages_of(const Request& request) const {
  PromptPages prompt{.tokens = std::ssize(request.prompt), .may_use_prefix = request.may_use_prefix()};
  if (loads_.size() == 1 || each_.kept_pages == 0) return prompt;
  uint64_t hash = 0;
  for (int64_t at = 0; at < prompt.tokens; ++at) {
    hash = split_mix(hash, static_cast<uint64_t>(request.prompt[static_cast<size_t>(at)]) + 1);
    if ((at + 1) % each_.page_size == 0) prompt.pages.push_back(hash);
  }
  return prompt;
}

bool ReplicaChoice::has_room(const Load& load) const {
  return loads_.size() == 1 || (load.sequences < each_.sequences && load.prompt_tokens < each_.waiting_tokens);
}

std::optional<size_t> ReplicaChoice::choose(const PromptPages& prompt) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const Load& load : loads_)
    if (has_room(load)) least = std::min(least, load.sequences);
  std::optional<size_t> best;
  std::tuple<int64_t, int64_t, int64_t> best_rank;  // the larger one wins
  for (size_t replica = 0; replica < loads_.size(); ++replica) {
    const Load& load = loads_[replica];
    if (!has_room(load) || load.sequences > least + std::max(kMoreSequences, least / kShareOfMore)) continue;
    const int64_t known = prompt.may_use_prefix ? load.sent.count_known(prompt.pages) : 0;
    const std::tuple rank(known, -load.sequences, -load.newest);
    if (best && rank <= best_rank) continue;
    best = replica;
    best_rank = rank;
  }
  if (!best) return {};
  Load& load = loads_[*best];
  ++load.sequences;
  load.prompt_tokens += prompt.tokens;
  load.newest = ++choices_;
  load.sent.add(prompt.pages);
  return best;
}

void ReplicaChoice::begun(size_t replica, int64_t prompt_tokens) { loads_[replica].prompt_tokens -= prompt_tokens; }

void ReplicaChoice::ended(size_t replica) { --loads_[replica].sequences; }

}  // namespace lfm2::serve
