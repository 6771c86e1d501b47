// The errors that answer some samples, in the order of the samples. Each needs sixteen bytes of memory. The texts are
// in memory while they are few, else in a temporary file.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "stage/io/samples/sample_names.h"

namespace lfm2 {

class SampleErrors {
 public:
  size_t size() const { return samples_.size(); }
  int64_t sample(size_t at) const { return samples_[at]; }
  std::string_view text(size_t at) const { return texts_[at]; }
  // The error of a sample; "" if it has none.
  std::string_view of(int64_t sample) const {
    const auto found = std::lower_bound(samples_.begin(), samples_.end(), sample);
    return found == samples_.end() || *found != sample ? "" : text(static_cast<size_t>(found - samples_.begin()));
  }
  void rest() const { texts_.rest(); }  // see TemporaryRange
  void push_back(int64_t sample, std::string_view text) {
    samples_.push_back(sample);
    texts_.push_back(text);
  }

 private:
  std::vector<int64_t> samples_;
  SampleNames texts_;
};

}  // namespace lfm2
