// Byte pair encoding of one piece of text: repeatedly merges the pair of neighbouring tokens whose merge has the lowest
// rank, the leftmost of equal pairs, until no merge applies.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace lfm2 {

// The number of a merge in the list; lower ranks are merged first.
using Rank = uint32_t;
inline constexpr Rank kNoRank = UINT32_MAX;

struct Merge {
  TokenId left, right, merged;
};

// Finds the merge of two tokens.
class MergeTable {
 public:
  MergeTable() = default;
  // If several merges have the same tokens, the last one counts, as in `tokenizers`.
  explicit MergeTable(std::vector<Merge> merges);

  Rank find(TokenId left, TokenId right) const;
  const Merge& operator[](Rank rank) const { return merges_[rank]; }
  size_t size() const { return merges_.size(); }

 private:
  struct Slot {
    uint32_t hash;
    Rank rank = kNoRank;
  };
  static uint64_t hash(TokenId left, TokenId right) {
    const uint64_t key = static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
    return (key ^ key >> 29) * 0x9e3779b97f4a7c15;
  }

  std::vector<Merge> merges_;
  std::vector<Slot> slots_;  // open addressing, at most half full
  int shift_ = 63;           // the upper bits of a hash are its slot
};

// A priority queue of pairs to merge, by rank. Pairs of one rank are popped from left to right.
class PairQueue {
 public:
  explicit PairQueue(size_t ranks) : bucket_of_(ranks, kNone) {}

  void push(Rank rank, uint32_t position);
  // Pops the first pair; false if there is none.
  bool pop(Rank& rank, uint32_t& position);

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  // The pairs of one rank. They mostly arrive from left to right, so a list that is sorted once, when its rank is
  // reached, is cheaper than a heap. Pairs that arrive after that go into a small heap.
  struct Bucket {
    std::vector<uint32_t> positions;
    size_t next = 0;
    std::vector<uint32_t> late;
    bool begun = false;
  };

  std::vector<uint32_t> bucket_of_;  // [ranks], kNone: no pair waits
  std::vector<Bucket> buckets_;
  std::vector<uint32_t> free_;  // buckets without pairs
  std::vector<Rank> ranks_;     // a heap of the ranks that have a bucket, the smallest on top
};

class BytePairs {
 public:
  // The working memory of one thread.
  struct Scratch {
    std::vector<uint32_t> cells;
    std::vector<PairQueue> queue;  // one element, made when a long piece needs it
  };

  BytePairs() = default;
  // Every byte must have a token. The text of each merged token must be the texts of its two parts, joined.
  BytePairs(const Vocabulary& vocabulary, std::vector<Merge> merges);

  // Appends the tokens of a piece. Time: at most n log n, linear except for contrived merges. Memory: about 12 bytes
  // for each byte of a long piece.
  void encode(std::string_view piece, Scratch& scratch, std::vector<TokenId>& ids) const;

 private:
  void encode_short(std::string_view piece, std::vector<TokenId>& ids) const;
  void encode_long(std::string_view piece, Scratch& scratch, std::vector<TokenId>& ids) const;
  Rank rank_of_bytes(char left, char right) const {
    return byte_ranks_[static_cast<size_t>(static_cast<uint8_t>(left)) << 8 | static_cast<uint8_t>(right)];
  }
  TokenId token_of(char byte) const { return byte_tokens_[static_cast<uint8_t>(byte)]; }

  std::array<TokenId, 256> byte_tokens_{};
  MergeTable merges_;
  std::vector<Rank> byte_ranks_;   // [left byte][right byte]
  std::vector<uint32_t> lengths_;  // in bytes, of each token
};

}  // namespace lfm2
