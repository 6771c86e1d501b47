// Counter-based random numbers: a keyed hash of the element's index, written so that the compiler can vectorise it.
#include "weights-tools/model/synth.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/split_mix.h"

namespace lfm2 {

namespace {

constexpr size_t kChunk = 4096;   // elements made at a time; they stay in the first-level cache
constexpr uint64_t kPerWord = 4;  // elements made from one random word, 16 bits each
constexpr float kNormSpread = 0.1f, kBiasSpread = 0.05f;
constexpr double kLogitStd = 4.0, kRouterStd = 2.0;

// Makes the elements from `first` on, which is a multiple of kPerWord.
void make_floats(uint64_t key, WeightSpread weight, uint64_t first, std::span<float> out) {
  uint64_t words[kChunk / kPerWord];
  int16_t random[kChunk];
  const size_t count = (out.size() + kPerWord - 1) / kPerWord;
  for (size_t i = 0; i < count; ++i) words[i] = split_mix(key, first / kPerWord + i);
  std::memcpy(random, words, count * sizeof words[0]);
  const float scale = weight.spread * 0x1p-15f;
  for (size_t i = 0; i < out.size(); ++i) out[i] = weight.centre + scale * static_cast<float>(random[i]);
}

float uniform_spread(double std) { return static_cast<float>(std * std::sqrt(3.0)); }

}  // namespace

WeightSpread weight_spread(const TensorSpec& spec, const ModelConfig& config) {
  const auto ends = [&](std::string_view ending) { return spec.name.ends_with(ending); };
  const double per_hidden = 1.0 / std::sqrt(static_cast<double>(config.hidden));
  if (ends("norm.weight")) return {1.0f, kNormSpread};
  if (ends("bias")) return {0.0f, kBiasSpread};
  if (ends("embed_tokens.weight") || ends("lm_head.weight")) return {0.0f, uniform_spread(kLogitStd * per_hidden)};
  if (ends("feed_forward.gate.weight")) return {0.0f, uniform_spread(kRouterStd * per_hidden)};
  // 1 / sqrt(number of inputs or taps)
  return {0.0f, uniform_spread(1.0 / std::sqrt(static_cast<double>(spec.dims.back())))};
}

SynthSource::SynthSource(std::string config_text, const std::string& what, uint64_t seed, DType dtype)
    : ModelSource(parse_model_config(config_text, what), config_text), seed_(seed) {
  if (config_.quantization.scheme != Quantization::Scheme::kNone)
    throw Error(ExitCode::kData, fmt::format("{}: has quantization_config, which only a checkpoint with fp8 weights "
                                             "agrees with, expected a configuration without it",
                                             what));
  for (TensorSpec& spec : model_tensors(config_)) {
    const DType stored = spec.keep_fp32 ? DType::kF32 : dtype;
    const uint64_t bytes = numel(spec.dims) * size_bytes(stored);
    tensors_.push_back({std::move(spec), stored, bytes, {}});
  }
}

void SynthSource::read(size_t tensor, uint64_t first_byte, std::span<std::byte> into) const {
  const SourceTensor& target = tensors_[tensor];
  const uint64_t key = XXH3_64bits_withSeed(target.spec.name.data(), target.spec.name.size(), seed_);
  const WeightSpread weight = weight_spread(target.spec, config_);
  const size_t element_bytes = size_bytes(target.dtype);
  expect(first_byte % element_bytes == 0 && into.size() % element_bytes == 0, "SynthSource: half an element was asked");
  uint64_t first = first_byte / element_bytes;
  float floats[kChunk];
  while (!into.empty()) {
    const size_t skipped = first % kPerWord;
    const size_t count = std::min(into.size() / element_bytes, kChunk - skipped);
    make_floats(key, weight, first - skipped, std::span(floats).first(skipped + count));
    convert(DType::kF32, floats + skipped, target.dtype, into.data(), count);
    into = into.subspan(count * element_bytes);
    first += count;
  }
}

}  // namespace lfm2
