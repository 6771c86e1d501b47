// The tokens of a vocabulary by their bytes, in an order in which a matcher can walk them all. It looks at each prefix
// of tokens once. Where the grammar does not allow a prefix, it skips all tokens that have it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "text/vocabulary.h"

namespace lfm2::grammar {

// The beginnings of a set of tokens as nodes in depth-first order, children by ascending byte:
//
//     a   ab   abc   ac   b         depth 1 2 3 2 1
//     0   1    2     3    4         after 4 3 3 4 5: the next node that does not begin with this one
class TokenTrie {
 public:
  struct Node {
    uint32_t after;     // index of the next node that is not below this one
    uint32_t first_id;  // in ids(); those of the next node end this one's
    uint8_t byte;       // the last byte of the beginning
    uint8_t depth;      // its length
  };
  using Token = std::pair<std::string_view, TokenId>;
  static constexpr size_t kMaxBytes = 255;  // longer tokens are left out, so no text ever uses them

  TokenTrie() = default;
  // Several ids may have the same bytes. Tokens without bytes are left out.
  explicit TokenTrie(std::vector<Token> tokens);

  // The last node is a sentinel at the end: its depth is 0.
  std::span<const Node> nodes() const { return nodes_; }
  // The tokens that end at a node.
  std::span<const TokenId> ids(size_t node) const {
    return {ids_.data() + nodes_[node].first_id, nodes_[node + 1].first_id - nodes_[node].first_id};
  }
  // The node of a first byte, or the sentinel's index.
  uint32_t first(uint8_t byte) const { return first_[byte]; }
  std::span<const TokenId> all_ids() const { return ids_; }
  bool empty() const { return ids_.empty(); }
  size_t max_depth() const { return max_depth_; }

 private:
  std::vector<Node> nodes_ = {{0, 0, 0, 0}};
  std::vector<TokenId> ids_;
  std::array<uint32_t, 256> first_{};
  size_t max_depth_ = 0;
};

}  // namespace lfm2::grammar
