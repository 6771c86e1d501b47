// The canonical (big-endian) text form of XXH3-128.
#include "stage/checksum.h"

#include <fmt/format.h>

namespace lfm2 {

std::string Checksum::hex() const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state_.get()));
  std::string text;
  for (unsigned char byte : canonical.digest) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace lfm2
