#include "stage/shards/fp8_tensors.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "kernels/gate_up.h"
#include "stage/shards/overflow.h"

namespace lfm2 {

namespace {

constexpr std::string_view kWeight = ".weight", kScale = "_scale", kInverse = "_inv",
                           kExperts = "feed_forward.experts.";

[[noreturn]] void refuse(const std::string& what, const std::string& message) {
  throw Error(ExitCode::kData, fmt::format("{}: {}", what, message));
}

// The name of an expert's tensor in its parts: "model.layers.7.feed_forward.experts.", "3", "w1" and ".weight_scale".
struct ExpertName {
  std::string_view prefix, expert, matrix, ending;
};
bool split_expert_name(std::string_view name, ExpertName& parts) {
  const size_t at = name.find(kExperts);
  if (at == std::string_view::npos) return false;
  parts.prefix = name.substr(0, at + kExperts.size());
  name.remove_prefix(parts.prefix.size());
  const size_t dot = name.find('.');
  const size_t second = dot == std::string_view::npos ? dot : name.find('.', dot + 1);
  if (second == std::string_view::npos) return false;
  parts.expert = name.substr(0, dot);
  parts.matrix = name.substr(dot + 1, second - dot - 1);
  parts.ending = name.substr(second);
  return true;
}

}  // namespace

bool may_be_fp8(const TensorSpec& spec) {
  return spec.name.starts_with(layer_prefix(spec.layer)) && spec.name.ends_with(kWeight) && spec.dims.size() == 2 &&
         !spec.name.ends_with("feed_forward.gate.weight");
}

std::string scale_name(const std::string& weight) { return weight + std::string(kScale); }

bool is_scale(const TensorSpec& spec) { return spec.name.ends_with(kScale); }

TensorSpec scale_spec(const TensorSpec& weight, Quantization::Scheme scheme) {
  TensorSpec scale{scale_name(weight.name), {weight.dims[0], 1}, weight.layer, true};
  if (scheme == Quantization::Scheme::kBlock) scale.dims = {scale_blocks(weight.dims[0]), scale_blocks(weight.dims[1])};
  return scale;
}

uint64_t held_scales(const TensorSpec& weight, Quantization::Scheme scheme) {
  const uint64_t n = weight.dims[0], k = weight.dims[1];
  // The padding of gate and up consists of rows, that of the down projection of columns.
  const uint64_t rows = weight.name.ends_with(".w2.weight") ? n : n + weight.padding / k;
  if (scheme != Quantization::Scheme::kBlock) return rows;
  return (rows % kGateUpBlock == 0 ? rows / kGateUpBlock : rows) * scale_blocks(k);
}

void expect_fp8_weight(const TensorSpec& weight, const std::string& checkpoint_name, const Quantization& quantization,
                       const std::string& what) {
  if (quantization.scheme == Quantization::Scheme::kNone)
    refuse(what, fmt::format("tensor {} is fp8, but the configuration has no quantization_config", weight.name));
  if (!may_be_fp8(weight))
    refuse(what, fmt::format("tensor {} is fp8, expected fp32, bf16 or fp16: only projections of layers are computed "
                             "in fp8",
                             weight.name));
  for (std::string module : {weight.name, checkpoint_name}) {
    if (module.ends_with(kWeight)) module.resize(module.size() - kWeight.size());
    if (quantization.ignored.contains(module))
      refuse(what,
             fmt::format("tensor {} is fp8, but quantization_config names {} as not quantised", weight.name, module));
  }
}

void expect_scale_type(const TensorSpec& scale, DType dtype, const std::string& what) {
  if (dtype != DType::kF32 && dtype != DType::kBf16)
    refuse(what, fmt::format("tensor {} is {}, expected scales in fp32 or bf16", scale.name, name(dtype)));
}

void expect_scale(const TensorSpec& scale, const std::vector<uint64_t>& dims, DType dtype, const std::string& what) {
  expect_scale_type(scale, dtype, what);
  if (dims != scale.dims)
    refuse(what,
           fmt::format("tensor {} has shape {}, expected {}", scale.name, dims_text(dims), dims_text(scale.dims)));
}

void FeedForwardTypes::add(const TensorSpec& weight, DType dtype, const std::string& what) {
  if (!in_feed_forward(weight) || !may_be_fp8(weight)) return;
  std::string key = layer_prefix(weight.layer) + (weight.name.ends_with(".w2.weight") ? "w2" : "w1");
  const bool is_fp8 = dtype == DType::kF8;
  const auto [first, added] = first_.try_emplace(std::move(key), weight.name, is_fp8);
  if (!added && first->second.second != is_fp8)
    refuse(what, fmt::format("tensor {} is fp8 and {} is not, expected one type for both: they are multiplied as one",
                             is_fp8 ? weight.name : first->second.first, is_fp8 ? first->second.first : weight.name));
}

bool is_checkpoint_name(const TensorSpec& spec, std::string_view checkpoint_name) {
  const bool scale = is_scale(spec);
  if (scale && checkpoint_name == fmt::format("{}{}", spec.name, kInverse)) return true;
  ExpertName parts;
  if (!split_expert_name(spec.name, parts)) return false;
  const bool down = parts.matrix == "w2";
  const std::string_view single = down ? "down_proj" : parts.matrix == "w1" ? "gate_proj" : "up_proj";
  const std::string all = fmt::format("{}{}", parts.prefix, down ? "down_proj" : "gate_up_proj");
  const std::string one = fmt::format("{}{}.{}{}", parts.prefix, parts.expert, single, parts.ending);
  return checkpoint_name == one || (scale && checkpoint_name == fmt::format("{}{}", one, kInverse)) ||
         checkpoint_name == (scale ? fmt::format("{}{}{}", all, kScale, kInverse) : all);
}

bool holds_all_experts(std::string_view checkpoint_name) {
  for (const std::string_view matrices : {"experts.gate_up_proj", "experts.down_proj"}) {
    if (checkpoint_name.ends_with(matrices)) return true;
    if (checkpoint_name.ends_with(fmt::format("{}{}{}", matrices, kScale, kInverse))) return true;
  }
  return false;
}

std::string bad_scale(const TensorSpec& scale, DType dtype, uint64_t first, const std::byte* scales, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    float value = 0;
    convert(dtype, scales + i * size_bytes(dtype), DType::kF32, &value, 1);
    if (std::isfinite(value) && value > 0) continue;
    return fmt::format("{:.9g} at {}", value, index_text(first + i, scale.dims));
  }
  return {};
}

}  // namespace lfm2
