// The fp8 weights of a set of shards: their scales, and how the report of a run names them.
#pragma once

#include <string>
#include <string_view>

#include "stage/shards/fp8_scales.h"
#include "stage/shards/shard_reader.h"

namespace lfm2 {

// The stored scales of a weight that is fp8. Error(kData) naming file and tensor where the checksum is another, or a
// scale is no finite number above 0.
Fp8Scales scales_of(const ShardSet& shards, const ShardTensor& weight);

// Reads the scales of every `parts`-th fp8 weight, from number `part` on, for the refusals of scales_of().
void expect_scales(const ShardSet& shards, size_t part, size_t parts);

// Which weights are fp8, in the words of `weights-tools quantize`; both are empty where none is.
struct Fp8Kind {
  std::string_view scheme;   // "channel" or "block"
  std::string_view modules;  // "experts": those of feed-forwards only; "mixers": none of these; "all": of both kinds
};
Fp8Kind fp8_kind(const ShardSet& shards);

// What is computed: "bf16", "fp8 (channel, experts)" or, with dequantised weights, "bf16 of fp8 (channel, experts)".
std::string dtype_text(std::string_view dtype, const Fp8Kind& kind);

}  // namespace lfm2
