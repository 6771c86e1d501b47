// Where a block's constructor gets its weights from: shards, or, for plans, nowhere.
#pragma once

#include <string>
#include <vector>

#include "kernels/tensor.h"

namespace lfm2 {

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // The named tensors of the checkpoint behind one another as one tensor of shape `dims` (a single name: that tensor).
  virtual Tensor load(const std::vector<std::string>& names, std::initializer_list<int64_t> dims) = 0;
};

}  // namespace lfm2
