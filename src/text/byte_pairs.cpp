// Byte pair encoding: by repeated search of the smallest rank for short pieces, by a queue of pairs for long ones.
#include "text/byte_pairs.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "base/error.h"

namespace lfm2 {

MergeTable::MergeTable(std::vector<Merge> merges) : merges_(std::move(merges)) {
  const size_t slots = std::bit_ceil(2 * merges_.size() + 2);
  slots_.resize(slots);
  shift_ = 64 - std::countr_zero(slots);
  for (Rank rank = 0; rank < merges_.size(); ++rank) {
    const uint64_t hashed = hash(merges_[rank].left, merges_[rank].right);
    size_t slot = hashed >> shift_;
    const auto same = [&](const Slot& other) {
      return merges_[other.rank].left == merges_[rank].left && merges_[other.rank].right == merges_[rank].right;
    };
    while (slots_[slot].rank != kNoRank && !same(slots_[slot])) slot = (slot + 1) & (slots - 1);
    slots_[slot] = {static_cast<uint32_t>(hashed), rank};
  }
}

Rank MergeTable::find(TokenId left, TokenId right) const {
  const uint64_t hashed = hash(left, right);
  for (size_t slot = hashed >> shift_;; slot = (slot + 1) & (slots_.size() - 1)) {
    const Slot& found = slots_[slot];
    if (found.rank == kNoRank) return kNoRank;
    if (found.hash == static_cast<uint32_t>(hashed) && merges_[found.rank].left == left &&
        merges_[found.rank].right == right)
      return found.rank;
  }
}

void PairQueue::push(Rank rank, uint32_t position) {
  uint32_t& number = bucket_of_[rank];
  if (number == kNone) {
    if (free_.empty()) {
      free_.push_back(static_cast<uint32_t>(buckets_.size()));
      buckets_.emplace_back();
    }
    number = free_.back();
    free_.pop_back();
    ranks_.push_back(rank);
    std::push_heap(ranks_.begin(), ranks_.end(), std::greater<>());
  }
  Bucket& bucket = buckets_[number];
  if (bucket.begun) {
    bucket.late.push_back(position);
    std::push_heap(bucket.late.begin(), bucket.late.end(), std::greater<>());
  } else {
    bucket.positions.push_back(position);
  }
}

bool PairQueue::pop(Rank& rank, uint32_t& position) {
  if (ranks_.empty()) return false;
  rank = ranks_.front();
  Bucket& bucket = buckets_[bucket_of_[rank]];
  if (!bucket.begun) {
    bucket.begun = true;
    if (!std::is_sorted(bucket.positions.begin(), bucket.positions.end()))
      std::sort(bucket.positions.begin(), bucket.positions.end());
  }
  const bool listed = bucket.next < bucket.positions.size();
  if (listed && (bucket.late.empty() || bucket.positions[bucket.next] <= bucket.late.front())) {
    position = bucket.positions[bucket.next++];
  } else {
    position = bucket.late.front();
    std::pop_heap(bucket.late.begin(), bucket.late.end(), std::greater<>());
    bucket.late.pop_back();
  }
  if (bucket.next == bucket.positions.size() && bucket.late.empty()) {
    constexpr size_t kMaxKept = 1024;  // limit of a list's kept memory, so that not all lists grow to the largest size
    bucket.positions.clear();
    if (bucket.positions.capacity() > kMaxKept) bucket.positions.shrink_to_fit();
    bucket.next = 0;
    bucket.begun = false;
    free_.push_back(bucket_of_[rank]);
    bucket_of_[rank] = kNone;
    std::pop_heap(ranks_.begin(), ranks_.end(), std::greater<>());
    ranks_.pop_back();
  }
  return true;
}

BytePairs::BytePairs(const Vocabulary& vocabulary, std::vector<Merge> merges)
    : merges_(std::move(merges)), byte_ranks_(256 * 256), lengths_(vocabulary.size()) {
  for (size_t byte = 0; byte < 256; ++byte) {
    const std::optional<TokenId> token = vocabulary.find(byte_level_character(static_cast<uint8_t>(byte)));
    expect(token.has_value(), "a byte without a token");
    byte_tokens_[byte] = *token;
  }
  for (size_t left = 0; left < 256; ++left)
    for (size_t right = 0; right < 256; ++right)
      byte_ranks_[left << 8 | right] = merges_.find(byte_tokens_[left], byte_tokens_[right]);
  for (size_t id = 0; id < lengths_.size(); ++id)
    lengths_[id] = static_cast<uint32_t>(vocabulary.bytes(static_cast<TokenId>(id)).size());
}

namespace {
constexpr size_t kMaxShort = 256;
}

void BytePairs::encode(std::string_view piece, Scratch& scratch, std::vector<TokenId>& ids) const {
  if (piece.size() <= kMaxShort)
    encode_short(piece, ids);
  else
    encode_long(piece, scratch, ids);
}

void BytePairs::encode_short(std::string_view piece, std::vector<TokenId>& ids) const {
  TokenId tokens[kMaxShort];
  Rank ranks[kMaxShort];  // of each token with its right neighbour
  size_t count = piece.size();
  if (count == 0) return;
  for (size_t i = 0; i < count; ++i) tokens[i] = token_of(piece[i]);
  for (size_t i = 0; i + 1 < count; ++i) ranks[i] = rank_of_bytes(piece[i], piece[i + 1]);
  while (count > 1) {
    Rank smallest = kNoRank;
    for (size_t i = 0; i + 1 < count; ++i) smallest = std::min(smallest, ranks[i]);
    if (smallest == kNoRank) break;
    const auto i = static_cast<size_t>(std::find(ranks, ranks + count - 1, smallest) - ranks);
    tokens[i] = merges_[smallest].merged;
    std::copy(tokens + i + 2, tokens + count, tokens + i + 1);
    if (i + 2 < count) std::copy(ranks + i + 2, ranks + count - 1, ranks + i + 1);
    --count;
    if (i > 0) ranks[i - 1] = merges_.find(tokens[i - 1], tokens[i]);
    if (i + 1 < count) ranks[i] = merges_.find(tokens[i], tokens[i + 1]);
  }
  ids.insert(ids.end(), tokens, tokens + count);
}

namespace {

// The tokens of a long piece, a cell for each byte. The first cell of a token holds its id; its last cell, if it is a
// different one, holds kLength + its length in bytes. So both neighbours are found without links.
class Cells {
 public:
  Cells(std::vector<uint32_t>& cells, const std::vector<uint32_t>& lengths, size_t size)
      : cells_(cells), lengths_(lengths), size_(static_cast<uint32_t>(size)) {}

  uint32_t size() const { return size_; }
  // Whether a token begins here.
  bool begins(uint32_t at) const { return cells_[at] < kInside; }
  TokenId token(uint32_t at) const { return static_cast<TokenId>(cells_[at]); }
  uint32_t end(uint32_t at) const { return at + lengths_[cells_[at]]; }
  uint32_t before(uint32_t at) const {
    const uint32_t last = cells_[at - 1];
    return last >= kLength ? at - (last - kLength) : at - 1;
  }

  void set(uint32_t at, TokenId token) { cells_[at] = static_cast<uint32_t>(token); }
  // Replaces the tokens at `at` and `middle`, which end at `end`.
  void join(uint32_t at, uint32_t middle, uint32_t end, TokenId token) {
    set(at, token);
    cells_[middle] = kInside;
    cells_[end - 1] = kLength + (end - at);
  }

 private:
  // Ids are smaller than both.
  static constexpr uint32_t kInside = 1u << 30, kLength = 1u << 31;

  std::vector<uint32_t>& cells_;
  const std::vector<uint32_t>& lengths_;
  uint32_t size_;
};

}  // namespace

void BytePairs::encode_long(std::string_view piece, Scratch& scratch, std::vector<TokenId>& ids) const {
  if (scratch.queue.empty()) scratch.queue.emplace_back(merges_.size());
  PairQueue& queue = scratch.queue.front();
  if (scratch.cells.size() < piece.size()) scratch.cells.resize(piece.size());
  Cells cells(scratch.cells, lengths_, piece.size());
  for (uint32_t at = 0; at < cells.size(); ++at) cells.set(at, token_of(piece[at]));
  for (uint32_t at = 0; at + 1 < cells.size(); ++at)
    if (const Rank rank = rank_of_bytes(piece[at], piece[at + 1]); rank != kNoRank) queue.push(rank, at);

  const auto push_pair = [&](uint32_t at, uint32_t right) {
    const Rank rank = merges_.find(cells.token(at), cells.token(right));
    if (rank != kNoRank) queue.push(rank, at);
  };
  Rank rank = 0;
  uint32_t at = 0;
  while (queue.pop(rank, at)) {
    // One of the two may have been merged with another neighbour meanwhile.
    if (!cells.begins(at) || cells.token(at) != merges_[rank].left) continue;
    const uint32_t right = cells.end(at);
    if (right == cells.size() || cells.token(right) != merges_[rank].right) continue;
    const uint32_t end = cells.end(right);
    cells.join(at, right, end, merges_[rank].merged);
    if (at > 0) push_pair(cells.before(at), at);
    if (end < cells.size()) push_pair(at, end);
  }
  for (at = 0; at < cells.size(); at = cells.end(at)) ids.push_back(cells.token(at));
  constexpr size_t kMaxKept = 1 << 20;
  if (scratch.cells.size() > kMaxKept) scratch.cells = {};
}

}  // namespace lfm2
