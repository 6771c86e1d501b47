// A tensor as a file describes it, before it is known whether the model has such a tensor. Made by the readers of
// safetensors and model.bin, used by tensor_match.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace lfm2 {

struct RawTensor {
  std::vector<uint64_t> dims;
  DType dtype = DType::kF32;
  size_t file = 0;                 // index into the source's files
  uint64_t offset = 0, bytes = 0;  // place in that file; checked to lie inside it
};

using RawTensors = std::map<std::string, RawTensor>;

}  // namespace lfm2
