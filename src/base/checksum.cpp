// The canonical (big-endian) text form of XXH3-128.
#include "base/checksum.h"

#include <fmt/format.h>

#include "base/error.h"

namespace lfm2 {

std::string Checksum::hex() const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state_.get()));
  std::string text;
  for (unsigned char byte : canonical.digest) text += fmt::format("{:02x}", byte);
  return text;
}

std::string HashSum::hex() const { return fmt::format("{:016x}{:016x}", sum_.high64, sum_.low64); }

HashSum HashSum::from_hex(const std::string& text) {
  expect(text.size() == 32, "HashSum::from_hex: not 32 digits");
  return from_words({std::stoull(text.substr(16), nullptr, 16), std::stoull(text.substr(0, 16), nullptr, 16)});
}

}  // namespace lfm2
