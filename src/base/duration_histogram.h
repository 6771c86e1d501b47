// Counts durations in buckets, so that quantiles of any number of durations need a fixed amount of memory.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace lfm2 {

// Each bucket is 1 % wider than the previous one, so the error of a quantile is at most 0.5 %. Durations are between
// 0.1 µs and 30 hours; others count as the nearest limit.
class DurationHistogram {
 public:
  void add(double seconds) {
    ++buckets_[bucket_of(seconds)];
    ++count_;
  }
  int64_t count() const { return count_; }
  // The quantile: the duration in seconds that the given share of all durations does not exceed. 0 if none was added.
  double quantile(double share) const {
    int64_t left = static_cast<int64_t>(share * static_cast<double>(count_ - 1) + 0.5);
    for (size_t bucket = 0; bucket < buckets_.size(); ++bucket)
      if ((left -= buckets_[bucket]) < 0) return kShortest * std::exp(kStep * (static_cast<double>(bucket) + 0.5));
    return 0;
  }

 private:
  static constexpr double kShortest = 1e-7, kStep = 0.00995;  // kStep is ln 1.01
  static constexpr size_t kBuckets = 2800;

  static size_t bucket_of(double seconds) {
    const double bucket = std::log(std::max(seconds, kShortest) / kShortest) / kStep;
    return std::min(static_cast<size_t>(bucket), kBuckets - 1);
  }

  std::array<int64_t, kBuckets> buckets_{};
  int64_t count_ = 0;
};

}  // namespace lfm2
