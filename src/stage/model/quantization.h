// Parses `quantization_config` of a config.json: how the weights of projections are quantised to fp8.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "base/json/json_fwd.h"

namespace lfm2 {

// The side of a square block of elements that share a scale (kBlock). The last blocks may be smaller.
inline constexpr int64_t kScaleBlock = 128;
constexpr uint64_t scale_blocks(uint64_t extent) { return (extent + kScaleBlock - 1) / kScaleBlock; }

struct Quantization {
  // kChannel: a weight [n, k] has a scale for each row, [n, 1]. kBlock: a scale for each block, [ceil(n / 128), ceil(k
  // / 128)]. Activations are quantised dynamically: by token with kChannel, by groups of 128 elements with kBlock.
  enum class Scheme : uint8_t { kNone, kChannel, kBlock };
  // The library whose file format it is, by `quant_method`.
  enum class Method : uint8_t { kNone, kCompressedTensors, kFp8 };
  Scheme scheme = Scheme::kNone;
  Method method = Method::kNone;
  std::set<std::string> ignored;  // modules that are not quantised: names, or patterns in that library's syntax

  bool operator==(const Quantization&) const = default;
};

std::string_view name(Quantization::Scheme scheme);  // "channel", "block"
std::string_view name(Quantization::Method method);  // "compressed-tensors", "fp8"

// `json` is the value of `quantization_config` in the file `what`. Error(kData) for unsupported schemes and unknown
// keys.
Quantization parse_quantization(const Json& json, const std::string& what);

}  // namespace lfm2
