// Where a block's constructor gets its weights from: shards, or, for plans, nowhere.
#pragma once

#include <string>
#include <vector>

#include "kernels/tensor.h"

namespace lfm2 {

// An RMSNorm in front of a block.
struct Norm {
  Tensor weight;  // [hidden]
  float eps = 0;
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // How the rows of several tensors become those of one.
  enum class Rows {
    kBehindOneAnother,
    kGateUp  // the names come in pairs, gate and up, whose rows alternate (kernels/gate_up.h)
  };
  // The named tensors of the checkpoint as one tensor of shape `dims` (a single name: that tensor). What `dims` has
  // more than they, columns or, of gate and up, rows behind each tensor's own, is zero: padded_ffn(). Its content may
  // still be on its way.
  virtual Tensor load(const std::vector<std::string>& names, std::initializer_list<int64_t> dims,
                      Rows rows = Rows::kBehindOneAnother) = 0;
};

}  // namespace lfm2
