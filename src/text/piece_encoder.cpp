// Look-up of whole tokens and of recent pieces.
#include "text/piece_encoder.h"

#include <algorithm>
#include <bit>

namespace lfm2 {

namespace {
constexpr size_t kRecentPieces = 1 << 14;  // 1 MB for each thread
}

static_assert(sizeof(PieceEncoder::Recent) == 64);

uint64_t PieceEncoder::hash(std::string_view piece) {
  constexpr uint64_t kFactor = 0x9e3779b97f4a7c15;
  uint64_t hashed = piece.size() * kFactor;
  const auto mix = [&](uint64_t word) {
    hashed = (hashed ^ word) * kFactor;
    hashed ^= hashed >> 32;
  };
  const char* at = piece.data();
  size_t left = piece.size();
  for (; left >= 8; left -= 8, at += 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    mix(word);
  }
  if (left >= 4) {  // two halves that overlap
    uint32_t low, high;
    std::memcpy(&low, at, 4);
    std::memcpy(&high, at + left - 4, 4);
    mix(static_cast<uint64_t>(high) << 32 | low);
  } else if (left > 0) {
    mix(static_cast<uint64_t>(static_cast<uint8_t>(at[0])) << 16 |
        static_cast<uint64_t>(static_cast<uint8_t>(at[left / 2])) << 8 | static_cast<uint8_t>(at[left - 1]));
  }
  return hashed * kFactor;
}

PieceEncoder::PieceEncoder(const Vocabulary& vocabulary, std::vector<Merge> merges, bool ignore_merges)
    : pairs_(vocabulary, std::move(merges)) {
  slots_.resize(std::bit_ceil(2 * vocabulary.count() + 2));
  BytePairs::Scratch scratch;
  std::vector<TokenId> ids;
  for (TokenId token = 0; static_cast<size_t>(token) < vocabulary.size(); ++token) {
    if (!vocabulary.may_be_merged(token)) continue;
    const std::string_view bytes = vocabulary.bytes(token);
    if (!ignore_merges) {
      ids.clear();
      pairs_.encode(bytes, scratch, ids);
      if (ids.size() != 1) continue;
    }
    add_whole(bytes, token);
  }
}

void PieceEncoder::add_whole(std::string_view bytes, TokenId token) {
  const uint64_t hashed = hash(bytes);
  size_t slot = (hashed >> 32) & (slots_.size() - 1);
  while (slots_[slot].token != kNone) slot = (slot + 1) & (slots_.size() - 1);
  slots_[slot] = {static_cast<uint32_t>(hashed), token, static_cast<uint32_t>(bytes_.size()),
                  static_cast<uint32_t>(bytes.size())};
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  max_whole_ = std::max(max_whole_, bytes.size());
}

TokenId PieceEncoder::find_whole(std::string_view piece, uint64_t hashed) const {
  if (piece.size() > max_whole_) return kNone;
  for (size_t slot = (hashed >> 32) & (slots_.size() - 1);; slot = (slot + 1) & (slots_.size() - 1)) {
    const Slot& found = slots_[slot];
    if (found.token == kNone) return kNone;
    if (found.hash == static_cast<uint32_t>(hashed) && found.size == piece.size() &&
        std::memcmp(bytes_.data() + found.begin, piece.data(), piece.size()) == 0)
      return found.token;
  }
}

void PieceEncoder::encode(std::string_view piece, Scratch& scratch, std::vector<TokenId>& ids) const {
  if (piece.size() > max_whole_ && piece.size() > Recent::kMaxBytes) {
    pairs_.encode(piece, scratch.pairs, ids);
    return;
  }
  const uint64_t hashed = hash(piece);
  if (const TokenId token = find_whole(piece, hashed); token != kNone) {
    ids.push_back(token);
    return;
  }
  if (piece.size() > Recent::kMaxBytes) {
    pairs_.encode(piece, scratch.pairs, ids);
    return;
  }
  if (scratch.recent.empty()) scratch.recent.resize(kRecentPieces);
  Recent& recent = scratch.recent[hashed % kRecentPieces];
  if (recent.size == piece.size() && std::memcmp(recent.bytes, piece.data(), piece.size()) == 0) {
    ids.insert(ids.end(), recent.tokens, recent.tokens + recent.count);
    return;
  }
  const size_t first = ids.size();
  pairs_.encode(piece, scratch.pairs, ids);
  const size_t count = ids.size() - first;
  if (count == 0 || count > Recent::kMaxTokens) return;
  recent.size = static_cast<uint8_t>(piece.size());
  recent.count = static_cast<uint8_t>(count);
  std::copy(piece.begin(), piece.end(), recent.bytes);
  std::copy(ids.begin() + static_cast<std::ptrdiff_t>(first), ids.end(), recent.tokens);
}

}  // namespace lfm2
