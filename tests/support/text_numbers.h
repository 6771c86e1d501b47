// Texts as numbers, for caches of tests that remember which text was written to them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lfm2::test {

using Tokens = std::vector<int32_t>;

// A number for a text, from that of the text without its last token. No text has 0, which is what was never written.
inline uint64_t with_token(uint64_t text, int32_t token) {
  return (text ^ static_cast<uint64_t>(token + 1)) * 0x9e3779b97f4a7c15u + 0x7f4a7c15u;
}
inline uint64_t number_of(std::span<const int32_t> tokens) {
  uint64_t text = 1;
  for (const int32_t token : tokens) text = with_token(text, token);
  return text;
}

}  // namespace lfm2::test
