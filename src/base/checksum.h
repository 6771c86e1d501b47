// XXH3-128 of bytes that arrive in pieces. The text form is the 32 hex digits that `xxhsum -H2` prints.
#pragma once

#include <xxhash.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/words.h"

namespace lfm2 {

class Checksum {
 public:
  Checksum() : state_(XXH3_createState()) { XXH3_128bits_reset(state_.get()); }
  void add(std::span<const std::byte> bytes) { XXH3_128bits_update(state_.get(), bytes.data(), bytes.size()); }
  std::string hex() const;

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

// The hex digits of the checksum of a whole text.
inline std::string checksum_of(std::string_view text) {
  Checksum checksum;
  checksum.add(std::as_bytes(std::span(text)));
  return checksum.hex();
}

// A sum of XXH3-128 hashes, each with a different seed. The order of addition does not matter.
class HashSum {
 public:
  void add(std::span<const std::byte> bytes, uint64_t seed) {
    add(XXH3_128bits_withSeed(bytes.data(), bytes.size(), seed));
  }
  void add(const HashSum& other) { add(other.sum_); }
  std::string hex() const;
  static HashSum from_hex(const std::string& text);  // from 32 hex digits
  std::array<uint64_t, 2> words() const { return {sum_.low64, sum_.high64}; }
  static HashSum from_words(const std::array<uint64_t, 2>& words) {
    HashSum sum;
    sum.sum_ = {.low64 = words[0], .high64 = words[1]};
    return sum;
  }
  bool operator==(const HashSum& other) const { return words() == other.words(); }
  friend void for_each_field(MaybeConst<HashSum> auto& sum, const auto& each) {  // see base/words.h
    each(sum.sum_.low64, sum.sum_.high64);
  }

 private:
  void add(XXH128_hash_t more) {
    sum_.low64 += more.low64;
    sum_.high64 += more.high64 + (sum_.low64 < more.low64 ? 1 : 0);
  }
  XXH128_hash_t sum_{};
};

}  // namespace lfm2
