// Encodes pieces of text, mostly without merging: pieces that are one token are looked up, and each thread caches the
// tokens of recent short pieces. Both give the same tokens as merging.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "text/byte_pairs.h"

namespace lfm2 {

class PieceEncoder {
 public:
  // A cached piece.
  struct Recent {
    static constexpr size_t kMaxBytes = 22, kMaxTokens = 10;
    uint8_t size = 0;   // bytes; 0: empty entry
    uint8_t count = 0;  // tokens
    char bytes[kMaxBytes];
    TokenId tokens[kMaxTokens];
  };
  struct Scratch {
    std::vector<Recent> recent;  // a direct-mapped cache, indexed by hash; allocated on first use
    BytePairs::Scratch pairs;
  };

  PieceEncoder() = default;
  // With `ignore_merges` a piece that is a token becomes that token, even if merging would give other tokens.
  PieceEncoder(const Vocabulary& vocabulary, std::vector<Merge> merges, bool ignore_merges);

  // Appends the tokens of a piece.
  void encode(std::string_view piece, Scratch& scratch, std::vector<TokenId>& ids) const;

 private:
  static constexpr TokenId kNone = -1;
  struct Slot {
    uint32_t hash = 0;
    TokenId token = kNone;
    uint32_t begin = 0, size = 0;  // range in bytes_
  };

  static uint64_t hash(std::string_view piece);
  void add_whole(std::string_view bytes, TokenId token);
  TokenId find_whole(std::string_view piece, uint64_t hashed) const;

  BytePairs pairs_;
  // A hash table of the tokens whose text may be a whole piece.
  std::vector<Slot> slots_;  // open addressing, at most half full
  std::vector<char> bytes_;
  size_t max_whole_ = 0;  // bytes of the longest text in slots_
};

}  // namespace lfm2
