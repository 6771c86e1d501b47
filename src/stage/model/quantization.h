// What `quantization_config` of a config.json says: how the weights of projections are quantised to fp8.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "base/json/json_fwd.h"

namespace lfm2 {

// Rows and columns that share a scale where scales are by block. The last block of a side may be smaller.
inline constexpr int64_t kScaleBlock = 128;
constexpr uint64_t scale_blocks(uint64_t extent) { return (extent + kScaleBlock - 1) / kScaleBlock; }

struct Quantization {
  // A weight [n, k] has a scale for each row, [n, 1], or for each block, [ceil(n / 128), ceil(k / 128)]. Activations
  // are quantised as they come: by token beside scales of rows, by groups of 128 beside scales of blocks.
  enum class Scheme : uint8_t { kNone, kChannel, kBlock };
  // The library whose form of files it is, by its `quant_method`.
  enum class Method : uint8_t { kNone, kCompressedTensors, kFp8 };
  Scheme scheme = Scheme::kNone;
  Method method = Method::kNone;
  std::set<std::string> ignored;  // modules that are not quantised: names, or patterns of that library

  bool operator==(const Quantization&) const = default;
};

std::string_view name(Quantization::Scheme scheme);  // "channel", "block"
std::string_view name(Quantization::Method method);  // "compressed-tensors", "fp8"

// `json` is the value of `quantization_config` in the file `what`. Error(kData) for every scheme that is not computed,
// and for unknown keys.
Quantization parse_quantization(const Json& json, const std::string& what);

}  // namespace lfm2
