// The part of a routing that combine_experts reads.
#pragma once

#include "kernels/ops.h"

namespace lfm2::test {

inline Routing weighted_rows(const Tensor& weights, const Tensor& rows) { return {{}, weights, {}, rows, {}}; }

}  // namespace lfm2::test
