// Reads all scales of an fp8 weight at once, because they are few.
#include "stage/shards/fp8_weights.h"

#include <fmt/format.h>

#include "base/error.h"
#include "stage/shards/fp8_tensors.h"

namespace lfm2 {

Fp8Scales scales_of(const ShardSet& shards, const ShardTensor& weight) {
  const ShardTensor& scale = *shards.scale_of(weight);
  Fp8Scales scales(weight.spec.dims, shards.config().quantization.scheme);
  const size_t element = size_bytes(scale.dtype);
  std::string bad;  // reported only if the checksum matches
  shards.read(scale, [&](uint64_t first_byte, std::span<const std::byte> bytes) {
    const uint64_t first = first_byte / element;
    const size_t count = bytes.size() / element;
    if (bad.empty()) bad = bad_scale(scale.spec, scale.dtype, first, bytes.data(), count);
    convert(scale.dtype, bytes.data(), DType::kF32, scales.values.data() + first, count);
  });
  if (!bad.empty())
    throw Error(ExitCode::kData, fmt::format("{}: scale {} is {}, expected a finite number above 0",
                                             shards.files()[scale.file].path().string(), scale.spec.name, bad));
  return scales;
}

void expect_scales(const ShardSet& shards, size_t part, size_t parts) {
  size_t number = 0;
  for (const ShardTensor& tensor : shards.tensors())
    if (tensor.dtype == DType::kF8 && number++ % parts == part) scales_of(shards, tensor);
}

Fp8Kind fp8_kind(const ShardSet& shards) {
  bool experts = false, mixers = false;
  for (const ShardTensor& tensor : shards.tensors())
    if (tensor.dtype == DType::kF8) (in_feed_forward(tensor.spec) ? experts : mixers) = true;
  if (!experts && !mixers) return {};
  return {name(shards.config().quantization.scheme), !mixers ? "experts" : experts ? "all" : "mixers"};
}

std::string dtype_text(std::string_view dtype, const Fp8Kind& kind) {
  if (kind.scheme.empty()) return std::string(dtype);
  return fmt::format("{}{} ({}, {})", dtype, dtype == name(DType::kF8) ? "" : " of fp8", kind.scheme, kind.modules);
}

}  // namespace lfm2
