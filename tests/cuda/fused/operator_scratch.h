// Scratch of an operator, by which the tests of its choice see whether one kernel did all of it.
#pragma once

#include "cuda/sequences.h"

namespace lfm2::test {

// Rows of NaN on the GPU. One kernel leaves them as they were; otherwise an operator of its parts writes them.
class OperatorScratch {
 public:
  OperatorScratch(DType dtype, int64_t rows, int64_t columns) : before_(nans(dtype, {rows, columns})), rows_(before_) {}

  operator const Tensor&() const { return rows_; }
  bool is_untouched() const {
    const HostTensor after(before_->dtype, {before_->dim(0), before_->dim(1)});
    rows_.fetch(after);
    return same_bits(after, before_);
  }

 private:
  HostTensor before_;
  DeviceTensor rows_;
};

}  // namespace lfm2::test
