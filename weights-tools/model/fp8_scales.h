// The scales of one weight, and which elements of it have which.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "stage/model/quantization.h"
#include "weights-tools/model/model_source.h"

namespace lfm2 {

struct Fp8Scales {
  std::vector<float> values;  // [rows] or [blocks of rows, blocks of columns]
  uint64_t rows = 1;          // that share scales
  uint64_t columns = 0;       // of the weight
  uint64_t group = 0;         // columns that share a scale

  // The layout of the scales of a weight, with zeros.
  Fp8Scales(const std::vector<uint64_t>& weight, Quantization::Scheme scheme);

  // Calls f(scale, first, count) for the runs of elements with one scale among `count` elements from element `begin` of
  // the weight on; `first` counts from `begin`.
  template <class F>
  void for_each_run(uint64_t begin, size_t count, F&& f) const {
    const uint64_t groups = (columns - 1) / group + 1;
    for (size_t done = 0; done < count;) {
      const uint64_t row = (begin + done) / columns, column = (begin + done) % columns;
      const uint64_t end = std::min((column / group + 1) * group, columns);
      const size_t run = std::min<uint64_t>(end - column, count - done);
      f(row / rows * groups + column / group, done, run);
      done += run;
    }
  }
};

// The scales of the fp8 weight with this number, which follow it. Error(kData) for what TensorReader refuses.
Fp8Scales read_scales(const ModelSource& source, size_t weight);

}  // namespace lfm2
