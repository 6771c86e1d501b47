// The fp8 weights of a set of shards: their scales, and their names in reports.
#pragma once

#include <string>
#include <string_view>

#include "stage/shards/fp8_scales.h"
#include "stage/shards/shard_reader.h"

namespace lfm2 {

// The stored scales of an fp8 weight. Error(kData) naming file and tensor if the checksum differs or a scale is not
// finite and positive.
Fp8Scales scales_of(const ShardSet& shards, const ShardTensor& weight);

// Checks the scales of every `parts`-th fp8 weight, from number `part` on, with the errors of scales_of().
void expect_scales(const ShardSet& shards, size_t part, size_t parts);

// Which weights are fp8, in the words of `weights-tools quantize`. Both are empty if none is.
struct Fp8Kind {
  std::string_view scheme;   // "channel" or "block"
  std::string_view modules;  // "experts": feed-forwards only; "mixers": token mixers only; "all": both
};
Fp8Kind fp8_kind(const ShardSet& shards);

// The computed type as text: "bf16", "fp8 (channel, experts)" or, with dequantised weights, "bf16 of fp8 (channel,
// experts)".
std::string dtype_text(std::string_view dtype, const Fp8Kind& kind);

}  // namespace lfm2
