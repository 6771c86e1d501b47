// Which hidden states are results, as --hidden or a request selects them.
#pragma once

#include <cstdint>

namespace lfm2 {

enum class Hidden : uint8_t { kNone, kLast, kMean, kAll };  // of the last position, the mean over all, or all positions

}  // namespace lfm2
