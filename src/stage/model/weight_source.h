// Where the constructor of a block gets its weights from: shards, or no memory at all where only sizes are counted.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/tensor.h"

namespace lfm2 {

// An RMSNorm at the input of a block.
struct Norm {
  Tensor weight;  // [hidden]
  float eps = 0;
  // Where all that multiply its result multiply fp8: how many elements share a scale (0: whole rows).
  std::optional<int64_t> fp8_group{};
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // How the rows of several tensors become the rows of one.
  enum class Rows {
    kBehindOneAnother,
    kGateUp  // the names come in pairs, gate and up, whose blocks of rows alternate (kernels/gate_up.h)
  };
  // Whether load() takes these tensors as one: none or all of them are fp8.
  virtual bool load_together(const std::vector<std::string>& /*names*/) const { return true; }
  // Returns the named tensors of the checkpoint as one tensor of shape `dims` (a single name: that tensor). Where
  // `dims` is larger than they are (padded_ffn()), the additional columns, or the additional rows after each gate and
  // up tensor, are zero. The content may still be loading when the call returns.
  virtual Tensor load(const std::vector<std::string>& names, std::initializer_list<int64_t> dims,
                      Rows rows = Rows::kBehindOneAnother) = 0;
  // The same for a weight of matrix products, or a table of embeddings, which the device may hold
  // prepacked (Backend::prepacked).
  virtual Tensor load_for_products(const std::vector<std::string>& names, std::initializer_list<int64_t> dims,
                                   Rows rows = Rows::kBehindOneAnother) {
    return load(names, dims, rows);
  }
};

}  // namespace lfm2
