// Converts hidden states that are results to fp32 on the host, and computes the mean of each sample from pieces of its
// rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"

namespace lfm2 {

// Consecutive rows of one sample.
struct SampleRows {
  int64_t count = 0;
  int64_t sample_rows = 0;  // if these are the sample's last rows: the number of its rows; else 0
  bool operator==(const SampleRows&) const = default;
};

// Assigns the rows of a micro-batch to samples, piece by piece.
class SampleCutter {
 public:
  // `lengths`: the number of rows of each sample. Earlier micro-batches had `taken` rows of the first sample.
  explicit SampleCutter(std::span<const int32_t> lengths, int64_t taken = 0) : lengths_(lengths), taken_(taken) {}
  std::vector<SampleRows> next(int64_t count);  // the samples of the next `count` rows
  int64_t ended() const { return ended_; }      // number of samples that have ended so far

 private:
  std::span<const int32_t> lengths_;
  int64_t ended_ = 0;
  int64_t taken_ = 0;  // rows of the current sample so far
};

// Results are valid until the next call.
class HiddenRows {
 public:
  explicit HiddenRows(int64_t columns) : sums_(static_cast<size_t>(columns)) {}
  // `count` rows, converted.
  std::span<const float> convert(DType type, const void* rows, int64_t count);
  // Adds `parts` and returns the means [samples that end in `parts`, columns]. Rows are added in fp64, one by one in
  // the order of their positions, and the mean is rounded to fp32 once. So a mean depends only on the sample's rows,
  // not on how they were cut into pieces.
  std::span<const float> means(DType type, const void* rows, std::span<const SampleRows> parts);
  void start_over();  // forgets a sample that did not end

 private:
  std::vector<float> converted_, means_;
  std::vector<double> sums_;  // of the current sample
};

}  // namespace lfm2
