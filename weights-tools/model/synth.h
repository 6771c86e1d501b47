// A model with random weights, generated while it is read, for tests and benchmarks that need real sizes but no real
// model.
#pragma once

#include "weights-tools/model/model_source.h"

namespace lfm2 {

// The distribution of the elements of one tensor: uniform in centre ± spread.
struct WeightSpread {
  float centre = 0.0f, spread = 0.0f;
};
// The spread of a tensor, chosen so that activations stay near 1 and logits differ by several units.
WeightSpread weight_spread(const TensorSpec& spec, const ModelConfig& config);

// An element depends only on the seed, the tensor's name and the index, so any part can be generated alone and in any
// order.
class SynthSource : public ModelSource {
 public:
  // Error(kData), beginning with `what`, for an invalid configuration, or one with quantization_config.
  SynthSource(std::string config_text, const std::string& what, uint64_t seed, DType dtype);
  std::string_view form() const override { return "synthetic"; }
  void read(size_t tensor, uint64_t first_byte, std::span<std::byte> into) const override;
  std::string file_of(size_t) const override { return "synthetic model"; }

 private:
  uint64_t seed_;
};

}  // namespace lfm2
