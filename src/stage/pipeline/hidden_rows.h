// Hidden states that are results, on the host: in fp32, and the means of the rows of each sample, which come in pieces.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"

namespace lfm2 {

// Consecutive rows of one sample.
struct SampleRows {
  int64_t count = 0;
  int64_t sample_rows = 0;  // how many rows the sample has, where these are its last ones; else 0
  bool operator==(const SampleRows&) const = default;
};

// Finds out which rows of a micro-batch are whose, piece by piece.
class SampleCutter {
 public:
  // `lengths`: how many rows each sample has; of the first one `taken` rows were in micro-batches before.
  explicit SampleCutter(std::span<const int32_t> lengths, int64_t taken = 0) : lengths_(lengths), taken_(taken) {}
  std::vector<SampleRows> next(int64_t count);  // those of the next `count` rows
  int64_t ended() const { return ended_; }      // number of samples that have ended so far

 private:
  std::span<const int32_t> lengths_;
  int64_t ended_ = 0;
  int64_t taken_ = 0;  // rows of the sample that is open
};

// What is returned is valid until the next call.
class HiddenRows {
 public:
  explicit HiddenRows(int64_t columns) : sums_(static_cast<size_t>(columns)) {}
  // `count` rows, converted.
  std::span<const float> convert(DType type, const void* rows, int64_t count);
  // The means [samples that end in `parts`, columns]. The rows of all parts continue where those before ended. Rows are
  // added up in fp64, one after the other in the order of their positions, and the mean is rounded to fp32 once. So a
  // sample's mean depends on its rows only, however they were cut into pieces.
  std::span<const float> means(DType type, const void* rows, std::span<const SampleRows> parts);
  void start_over();  // forgets a sample that did not end

 private:
  std::vector<float> converted_, means_;
  std::vector<double> sums_;  // of the sample that is open
};

}  // namespace lfm2
