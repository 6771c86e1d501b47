#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "kernels/backend.h"
#include "kernels/tensor_memory.h"
#include "stage/model/weight_source.h"

namespace lfm2::test {

// Which weights are fp8, as `weights-tools quantize --modules` names them.
enum class Fp8Modules { kNone, kExperts, kAll };

// Small random weights of any shape, of the type of activations, and fp8 where `fp8` says so.
class RandomWeights final : public WeightSource {
 public:
  RandomWeights(Backend& backend, DType activations, Fp8Modules fp8)
      : backend_(backend), memory_(backend), activations_(activations), fp8_(fp8) {
    std::mt19937 generator(1);
    std::normal_distribution<float> normal(0, 0.02f);
    std::vector<float> noise(size_t{1} << 22);
    for (float& x : noise) x = normal(generator);
    noise_ = memory_.allocate(activations_, {static_cast<int64_t>(noise.size())});
    backend.upload(noise_, 0, DType::kF32, noise.data(), noise_.numel());
    std::vector<F8> noise8(noise.size());
    for (size_t i = 0; i < noise.size(); ++i) noise8[i] = from_float<F8>(noise[i] / kScale);
    noise8_ = memory_.allocate(DType::kF8, {static_cast<int64_t>(noise8.size())});
    backend.upload(noise8_, 0, DType::kF8, noise8.data(), noise8_.numel());
  }
  Tensor load_for_products(const std::vector<std::string>& names, std::initializer_list<int64_t> dims,
                           Rows rows) override {
    const bool feed_forward = names.front().find("feed_forward") != std::string::npos,
               mixer = names.front().ends_with("_proj.weight");
    if (fp8_ == Fp8Modules::kNone || !(feed_forward || (mixer && fp8_ == Fp8Modules::kAll)))
      return load(names, dims, rows);
    Tensor tensor = memory_.allocate(DType::kF8, dims);
    fill(tensor);
    const int64_t count = tensor.numel() / tensor.k();
    const std::vector<float> scales(static_cast<size_t>(count), kScale);
    const Tensor held = memory_.allocate(DType::kF32, {count});
    backend_.upload(held, 0, DType::kF32, scales.data(), count);
    tensor.scales = {.data = held.as<float>(), .stride = tensor.dim(tensor.rank - 2)};
    return tensor;
  }
  Tensor load(const std::vector<std::string>& names, std::initializer_list<int64_t> dims, Rows) override {
    const bool bias = names.front().ends_with("expert_bias");
    const Tensor tensor = memory_.allocate(bias ? DType::kF32 : activations_, dims);
    if (bias) {
      const std::vector<float> none(static_cast<size_t>(tensor.numel()));
      backend_.upload(tensor, 0, DType::kF32, none.data(), tensor.numel());
      return tensor;
    }
    fill(tensor);
    return tensor;
  }
  // The noise of 16 bits is small and finite in tensors of fp32, too.
  void fill(const Tensor& tensor) {
    const Tensor& noise = tensor.dtype == DType::kF8 ? noise8_ : noise_;
    for (size_t first = 0; first < tensor.bytes(); first += noise.bytes())
      backend_.copy(backend_.compute(), tensor.data + first, noise.data,
                    std::min(noise.bytes(), tensor.bytes() - first));
  }

 private:
  static constexpr float kScale = 0.0005f;
  Backend& backend_;
  TensorMemory memory_;
  DType activations_;
  Fp8Modules fp8_;
  Tensor noise_, noise8_;
};

}  // namespace lfm2::test
