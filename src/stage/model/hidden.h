// Which hidden states are results: those that --hidden names, or a request.
#pragma once

#include <cstdint>

namespace lfm2 {

enum class Hidden : uint8_t { kNone, kLast, kMean, kAll };  // of which positions, or the mean over all

}  // namespace lfm2
