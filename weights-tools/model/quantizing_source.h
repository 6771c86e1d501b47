// Presents a model with its projections quantised to fp8 while it is read.
#pragma once

#include <functional>

#include "weights-tools/model/model_source.h"

namespace lfm2 {

enum class Fp8Modules : uint8_t { kFeedForward, kAll };  // experts and dense feed-forwards, or every projection

// The quantisation error of one weight.
struct Fp8Error {
  double squares = 0, error_squares = 0;  // sums over the elements
  float largest_error = 0;
  uint64_t elements = 0;

  double relative_rms() const;
  void add(const Fp8Error& other);
};
// Called with each weight after it was read.
using Fp8Listener = std::function<void(const TensorSpec& weight, const Fp8Error& error)>;

// The model in the format of compressed-tensors. A scale is the largest magnitude of its row, or of its block of 128 x
// 128, divided by 448, in fp32. A weight is E4M3(w / scale), rounded to nearest even; rows of zeros have scale 1.
// Weights are read twice, for the scales and for the elements. `threads` threads share the arithmetic, with the same
// results for any number; 0: one for each processor, up to 16. Error(kData) if the model already has fp8, and, naming
// tensor and index, for elements that are NaN or infinite.
std::unique_ptr<ModelSource> quantize(std::unique_ptr<ModelSource> source, Quantization::Scheme scheme,
                                      Fp8Modules modules, Fp8Listener listener, int threads = 0);

}  // namespace lfm2
