// Samples of given lengths, back to back, with the index arrays that operators on whole samples take. Used by the tests
// of the CPU operators.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/ops.h"
#include "support/host_tensor.h"

namespace lfm2::test {

struct PackedBatch {
  explicit PackedBatch(const std::vector<int32_t>& all_lengths)
      : lengths(all_lengths),
        positions(DType::kI32, {std::accumulate(lengths.begin(), lengths.end(), int64_t{0})}),
        offsets(DType::kI32, {static_cast<int64_t>(lengths.size()) + 1}) {
    size_t token = 0;
    int32_t longest = 0;
    offsets.set(0, 0);
    for (size_t sample = 0; sample < lengths.size(); ++sample) {
      for (int32_t position = 0; position < lengths[sample]; ++position) positions.set(token++, position);
      offsets.set(sample + 1, static_cast<double>(token));
      longest = std::max(longest, lengths[sample]);
    }
    batch = {positions, offsets, tokens(), static_cast<int64_t>(lengths.size()), longest};
  }
  int64_t tokens() const { return positions->dim(0); }
  int64_t offset(size_t sample) const { return static_cast<int64_t>(offsets.get(sample)); }

  std::vector<int32_t> lengths;
  HostTensor positions, offsets;
  Batch batch;  // refers to the tensors above
};

}  // namespace lfm2::test
