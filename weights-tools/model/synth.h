// A model with random weights, made as it is read: for tests and benchmarks that need the real sizes and no real model.
#pragma once

#include "weights-tools/model/model_source.h"

namespace lfm2 {

// How the elements of one tensor are spread: uniform in centre ± spread.
struct WeightSpread {
  float centre = 0.0f, spread = 0.0f;
};
// Chosen so that activations stay near 1 and logits differ by several units.
WeightSpread weight_spread(const TensorSpec& spec, const ModelConfig& config);

// An element depends only on the seed, its tensor's name and its index there: any part can be made alone, in any order.
class SynthSource : public ModelSource {
 public:
  SynthSource(std::string config_text, const std::string& what, uint64_t seed, DType dtype);
  std::string_view form() const override { return "synthetic"; }
  void read(size_t tensor, uint64_t first_byte, std::span<std::byte> into) const override;
  std::string file_of(size_t) const override { return "synthetic model"; }

 private:
  uint64_t seed_;
};

}  // namespace lfm2
