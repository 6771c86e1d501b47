// Where samples begin, in tokens, and which samples of a job are left. A list needs a few words if samples are equally
// long, else eight bytes a sample. Rank 0 has the list of the whole job, and the first rank of every other pipeline
// that of its share. Ranks that write results have it if rows or file depend on it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/words.h"

namespace lfm2 {

struct SampleRange {
  int64_t first = 0, count = 0;
};

// The size of a job, which every rank knows.
struct JobSize {
  int64_t samples = 0, tokens = 0;
};
void for_each_field(MaybeConst<JobSize> auto& size, const auto& each) {  // see base/words.h
  each(size.samples, size.tokens);
}

// A list [samples + 1]: the first token of each sample, then the number of all tokens. If all samples but the last are
// equally long, the list needs no memory.
class SampleOffsets {
 public:
  SampleOffsets() = default;  // {0}: no samples
  SampleOffsets(std::initializer_list<int64_t> offsets) : SampleOffsets(std::vector<int64_t>(offsets)) {}
  explicit SampleOffsets(const std::vector<int64_t>& offsets);
  static SampleOffsets equally_long(int64_t samples, int64_t length);

  void push_back(int64_t end);  // adds a sample that ends here
  int64_t size() const { return samples_ + 1; }
  int64_t samples() const { return samples_; }
  int64_t back() const { return end_; }
  int64_t operator[](int64_t sample) const {
    if (!list_.empty()) return list_[static_cast<size_t>(sample)];
    return sample < samples_ ? sample * length_ : end_;
  }
  int64_t length(int64_t sample) const { return (*this)[sample + 1] - (*this)[sample]; }
  int64_t sample_of(int64_t token) const;  // the sample of a token
  bool all_have_length(int64_t length) const;

  JobSize job_size() const { return {samples_, end_}; }
  uint64_t memory_bytes() const { return list_.capacity() * sizeof(int64_t); }
  // For messages to other ranks.
  std::string to_bytes() const;
  static SampleOffsets from_bytes(std::string_view bytes);
  bool operator==(const SampleOffsets& other) const;

 private:
  bool is_even() const { return list_.empty() && end_ == samples_ * length_; }

  int64_t samples_ = 0, end_ = 0;
  int64_t length_ = 0;         // of each sample but the last, if list_ is empty
  std::vector<int64_t> list_;  // the whole list, or empty
};

// The remaining samples of a job, by their numbers in the whole job.
class SampleNumbers {
 public:
  bool all_are_left() const { return runs_.empty(); }
  void add(int64_t first_number, int64_t count);  // ascending
  int64_t operator[](int64_t sample) const;       // the number of remaining sample `sample`

 private:
  struct Run {
    int64_t sample, number;  // of its first sample
  };
  std::vector<Run> runs_;  // each ends where the next begins
  int64_t samples_ = 0;
};

}  // namespace lfm2
