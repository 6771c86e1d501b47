// Drafts what followed the newest tokens of a sequence where these stood earlier in its own prompt or text.
#pragma once

#include <unordered_map>

#include "stage/generation/drafter.h"

namespace lfm2 {

// A suffix automaton over the tokens (Blumer et al., 1985): after each token it knows the longest suffix of the text
// that also ends earlier in it. A token takes constant time on average, and at most two states.
class NgramDrafter : public Drafter {
 public:
  static constexpr int64_t kLeastMatch = 3;  // shorter repetitions predict little

  NgramDrafter() : states_(1) {}

  void read(std::span<const int32_t> tokens) override;
  std::vector<int32_t> propose(std::span<const int32_t> tokens, int64_t most) override;
  // A match grows by at most one token with each token.
  bool may_propose(std::span<const int32_t> tokens, int64_t awaited) override;
  // The longest suffix of the tokens read so far that also ends earlier: its length, and where it ended before.
  int64_t match() const { return states_[static_cast<size_t>(matched_)].length; }

 private:
  // A set of substrings that end at the same places. State 0 is the empty one.
  struct State {
    int32_t length = 0;  // of the longest of them
    int32_t link = -1;   // the state of its longest suffix that ends in more places
    int32_t end = -1;    // index of the token after one of its earlier ends
    int32_t edges = -1;  // the newest of its outgoing edges, of which each names the one before
  };
  struct Edge {
    int32_t token = 0, target = 0, before = -1;
  };

  void extend(int32_t token);
  int32_t* target_of(int32_t state, int32_t token);  // null: there is no such edge
  void add_edge(int32_t state, int32_t token, int32_t target);
  int32_t split(int32_t state, int32_t target, int32_t token);

  std::vector<State> states_;
  std::vector<Edge> edges_;
  std::unordered_map<uint64_t, int32_t> edge_of_;  // index of the edge of a state and a token
  int32_t last_ = 0;                               // the state of the whole text
  int32_t matched_ = 0, matched_end_ = 0;          // the state of match(), and the index of the token that followed it
  int32_t read_ = 0;                               // tokens read so far
};

}  // namespace lfm2
