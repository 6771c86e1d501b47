// The online construction of the suffix automaton, and drafts from the longest match.
#include "stage/generation/ngram_drafter.h"

#include <utility>

namespace lfm2 {

namespace {

uint64_t key_of(int32_t state, int32_t token) {
  return static_cast<uint64_t>(static_cast<uint32_t>(state)) << 32 | static_cast<uint32_t>(token);
}

}  // namespace

int32_t* NgramDrafter::target_of(int32_t state, int32_t token) {
  const auto found = edge_of_.find(key_of(state, token));
  return found == edge_of_.end() ? nullptr : &edges_[static_cast<size_t>(found->second)].target;
}

void NgramDrafter::add_edge(int32_t state, int32_t token, int32_t target) {
  const auto edge = static_cast<int32_t>(edges_.size());
  edges_.push_back({token, target, std::exchange(states_[static_cast<size_t>(state)].edges, edge)});
  edge_of_.emplace(key_of(state, token), edge);
}

// Splits the substrings of `target` that are reached from `state` by `token` off the longer ones. Returns their state.
int32_t NgramDrafter::split(int32_t state, int32_t target, int32_t token) {
  const auto copy = static_cast<int32_t>(states_.size());
  State& whole = states_[static_cast<size_t>(target)];
  State part{.length = states_[static_cast<size_t>(state)].length + 1, .link = whole.link, .end = whole.end};
  whole.link = copy;
  const int32_t first = whole.edges;
  states_.push_back(part);
  for (int32_t edge = first; edge >= 0; edge = edges_[static_cast<size_t>(edge)].before) {
    const Edge one = edges_[static_cast<size_t>(edge)];
    add_edge(copy, one.token, one.target);
  }
  for (; state >= 0; state = states_[static_cast<size_t>(state)].link) {
    int32_t* reached = target_of(state, token);
    if (reached == nullptr || *reached != target) break;
    *reached = copy;
  }
  return copy;
}

void NgramDrafter::extend(int32_t token) {
  ++read_;
  const auto added = static_cast<int32_t>(states_.size());
  states_.push_back({.length = read_, .end = read_});
  int32_t state = last_;
  const int32_t* found = nullptr;
  for (; state >= 0 && (found = target_of(state, token)) == nullptr; state = states_[static_cast<size_t>(state)].link)
    add_edge(state, token, added);
  int32_t link = 0;
  if (state >= 0) {
    const int32_t target = *found;
    link = states_[static_cast<size_t>(target)].length == states_[static_cast<size_t>(state)].length + 1
               ? target
               : split(state, target, token);
  }
  states_[static_cast<size_t>(added)].link = link;
  last_ = added;
  matched_ = link;
  // The next match of these substrings continues from here.
  matched_end_ = std::exchange(states_[static_cast<size_t>(link)].end, read_);
}

void NgramDrafter::read(std::span<const int32_t> tokens) {
  while (std::cmp_less(read_, tokens.size())) extend(tokens[static_cast<size_t>(read_)]);
}

std::vector<int32_t> NgramDrafter::propose(std::span<const int32_t> tokens, int64_t most) {
  read(tokens);
  if (match() < kLeastMatch) return {};
  std::vector<int32_t> drafts;
  // A repetition that reaches the text's end continues with its own drafts.
  for (auto at = static_cast<size_t>(matched_end_); std::ssize(drafts) < most; ++at)
    drafts.push_back(at < tokens.size() ? tokens[at] : drafts[at - tokens.size()]);
  return drafts;
}

bool NgramDrafter::may_propose(std::span<const int32_t> tokens, int64_t awaited) {
  read(tokens);
  return match() + awaited >= kLeastMatch;
}

}  // namespace lfm2
