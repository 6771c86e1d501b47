// Reads the integers of files: little-endian, 1 to 8 bytes wide.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

namespace lfm2 {

// Converts integers of `width` bytes each. Unsigned values above INT64_MAX become INT64_MAX, as in the HDF5 library.
inline std::vector<int64_t> integers_of(std::span<const std::byte> bytes, size_t width, bool is_signed) {
  std::vector<int64_t> values(bytes.size() / width);
  const int unused = 64 - 8 * static_cast<int>(width);
  for (size_t i = 0; i < values.size(); ++i) {
    uint64_t value = 0;
    std::memcpy(&value, bytes.data() + i * width, width);
    if (is_signed)
      values[i] = static_cast<int64_t>(value << unused) >> unused;
    else
      values[i] = static_cast<int64_t>(std::min<uint64_t>(value, std::numeric_limits<int64_t>::max()));
  }
  return values;
}

}  // namespace lfm2
