// Random weights: the same for the same seed in whatever order they are read, and with the intended spread.
#include <cmath>

#include "support/weights_support.h"
#include "weights-tools/model/synth.h"

namespace lfm2 {
namespace {

using test::tensor_bytes;

SynthSource tiny(uint64_t seed, DType dtype) {
  return {std::string(builtin_model_config("lfm2-tiny")), "lfm2-tiny", seed, dtype};
}

std::vector<float> values(const ModelSource& model, size_t tensor) {
  const SourceTensor& t = model.tensors()[tensor];
  std::vector<float> result(numel(t.spec.dims));
  convert(t.dtype, tensor_bytes(model, tensor).data(), DType::kF32, result.data(), result.size());
  return result;
}

TEST(SynthTest, AnyPartCanBeMadeAlone) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const SynthSource model = tiny(1, dtype);
    const std::string whole = tensor_bytes(model, 0);
    const size_t element = size_bytes(dtype);
    for (const size_t first : {0u, 1u, 3u, 4u, 4095u, 4096u, 65535u}) {
      for (const size_t count : {0u, 1u, 5u, 4096u, 9000u}) {
        if ((first + count) * element > whole.size()) continue;
        std::string part(count * element, '\0');
        model.read(0, first * element, std::as_writable_bytes(std::span(part)));
        EXPECT_TRUE(part == whole.substr(first * element, part.size())) << first << " + " << count;
      }
    }
  }
}

TEST(SynthTest, SeedAndNameDecide) {
  const SynthSource a = tiny(1, DType::kF32), same = tiny(1, DType::kF32), other = tiny(2, DType::kF32);
  std::set<std::string> starts;
  for (size_t i = 0; i < a.tensors().size(); ++i) {
    const std::string bytes = tensor_bytes(a, i);
    EXPECT_TRUE(bytes == tensor_bytes(same, i));
    EXPECT_FALSE(bytes == tensor_bytes(other, i)) << a.tensors()[i].spec.name;
    starts.insert(bytes.substr(0, 32));
  }
  EXPECT_EQ(starts.size(), a.tensors().size());
}

TEST(SynthTest, NarrowTypesAreTheRoundedModel) {
  const SynthSource wide = tiny(3, DType::kF32);
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    const SynthSource narrow = tiny(3, dtype);
    for (size_t i = 0; i < wide.tensors().size(); ++i) {
      const SourceTensor& t = narrow.tensors()[i];
      EXPECT_EQ(t.dtype, t.spec.keep_fp32 ? DType::kF32 : dtype);
      std::string rounded(t.bytes, '\0');
      convert(DType::kF32, tensor_bytes(wide, i).data(), t.dtype, rounded.data(), numel(t.spec.dims));
      EXPECT_TRUE(rounded == tensor_bytes(narrow, i)) << t.spec.name;
    }
  }
}

TEST(SynthTest, SpreadIsTheIntendedOne) {
  const SynthSource model = tiny(0, DType::kF32);
  const ModelConfig& c = model.config();
  for (size_t i = 0; i < model.tensors().size(); ++i) {
    const TensorSpec& spec = model.tensors()[i].spec;
    const std::vector<float> x = values(model, i);
    double sum = 0, squares = 0, largest = 0;
    const double centre = spec.name.ends_with("norm.weight") ? 1.0 : 0.0;
    for (const float value : x) {
      sum += value - centre;
      squares += (value - centre) * (value - centre);
      largest = std::max(largest, std::abs(value - centre));
    }
    const auto count = static_cast<double>(x.size());
    double std = 1.0 / std::sqrt(static_cast<double>(spec.dims.back()));
    if (spec.name.ends_with("norm.weight")) std = 0.1 / std::sqrt(3.0);
    if (spec.name.ends_with("bias")) std = 0.05 / std::sqrt(3.0);
    if (spec.name.ends_with("embed_tokens.weight")) std = 4.0 / std::sqrt(static_cast<double>(c.hidden));
    if (spec.name.ends_with("gate.weight")) std = 2.0 / std::sqrt(static_cast<double>(c.hidden));
    const double sigma = std / std::sqrt(count);  // standard deviation of the mean of `count` elements
    EXPECT_LT(std::abs(sum / count), 5 * sigma) << spec.name;
    EXPECT_NEAR(std::sqrt(squares / count), std, 5 * sigma) << spec.name;
    EXPECT_LE(largest, std * std::sqrt(3.0) * 1.0001) << spec.name;
  }
}

// Neighbours, and elements that share a random word, are uncorrelated.
TEST(SynthTest, ElementsAreUncorrelated) {
  const SynthSource model = tiny(0, DType::kF32);
  const std::vector<float> x = values(model, 0);
  double variance = 0;
  for (const float value : x) variance += value * value;
  for (const size_t lag : {1u, 2u, 3u, 4u, 64u, 4096u}) {
    double product = 0;
    for (size_t i = 0; i + lag < x.size(); ++i) product += x[i] * x[i + lag];
    EXPECT_LT(std::abs(product / variance), 5.0 / std::sqrt(static_cast<double>(x.size()))) << lag;
  }
}

}  // namespace
}  // namespace lfm2
