// The source from which blocks construct their weights: shards, or tensors without memory if only sizes are counted.
#pragma once

#include <string>
#include <vector>

#include "kernels/tensor.h"

namespace lfm2 {

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // How load() joins the rows of several tensors.
  enum class Rows {
    kBehindOneAnother,
    kGateUp  // pairs of gate and up, whose blocks of rows alternate (kernels/gate_up.h)
  };
  // Whether load() can load these tensors as one, that is, none or all of them are fp8.
  virtual bool load_together(const std::vector<std::string>& /*names*/) const { return true; }
  // Returns the named tensors of the checkpoint as one tensor of shape `dims`. If `dims` is larger than the tensors
  // (padded_ffn()), the additional columns, or the additional rows after each gate and up tensor, are zero. The content
  // may still be loading when the call returns.
  virtual Tensor load(const std::vector<std::string>& names, std::initializer_list<int64_t> dims,
                      Rows rows = Rows::kBehindOneAnother) = 0;
  // The same for a weight of matrix products or an embedding table, which the device may hold prepacked
  // (Backend::prepacked).
  virtual Tensor load_for_products(const std::vector<std::string>& names, std::initializer_list<int64_t> dims,
                                   Rows rows = Rows::kBehindOneAnother) {
    return load(names, dims, rows);
  }
};

}  // namespace lfm2
