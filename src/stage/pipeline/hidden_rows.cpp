#include "stage/pipeline/hidden_rows.h"

#include <algorithm>

#include "base/error.h"

namespace lfm2 {

std::vector<SampleRows> SampleCutter::next(int64_t count) {
  std::vector<SampleRows> parts;
  while (count > 0) {
    expect(ended_ < std::ssize(lengths_), "SampleCutter: more rows than the samples have");
    const int64_t length = lengths_[static_cast<size_t>(ended_)], now = std::min(count, length - taken_);
    taken_ += now;
    count -= now;
    const bool ends = taken_ == length;
    parts.push_back({now, ends ? length : 0});
    if (!ends) continue;
    ++ended_;
    taken_ = 0;
  }
  return parts;
}

std::span<const float> HiddenRows::convert(DType type, const void* rows, int64_t count) {
  converted_.resize(static_cast<size_t>(count) * sums_.size());
  lfm2::convert(type, rows, DType::kF32, converted_.data(), converted_.size());
  return converted_;
}

std::span<const float> HiddenRows::means(DType type, const void* rows, std::span<const SampleRows> parts) {
  int64_t count = 0;
  for (const SampleRows& part : parts) count += part.count;
  std::span<const float> left = convert(type, rows, count);
  means_.clear();
  for (const SampleRows& part : parts) {
    for (int64_t row = 0; row < part.count; ++row) {
      for (size_t i = 0; i < sums_.size(); ++i) sums_[i] += static_cast<double>(left[i]);
      left = left.subspan(sums_.size());
    }
    if (part.sample_rows == 0) continue;
    for (const double sum : sums_) means_.push_back(static_cast<float>(sum / static_cast<double>(part.sample_rows)));
    start_over();
  }
  return means_;
}

void HiddenRows::start_over() { std::fill(sums_.begin(), sums_.end(), 0.0); }

}  // namespace lfm2
