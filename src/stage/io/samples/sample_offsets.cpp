// Lists of equal steps are kept as one step.
#include "stage/io/samples/sample_offsets.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace lfm2 {

SampleOffsets::SampleOffsets(const std::vector<int64_t>& offsets) {
  expect(!offsets.empty() && offsets.front() == 0, "SampleOffsets: the first sample begins at token 0");
  for (size_t i = 1; i < offsets.size(); ++i) push_back(offsets[i]);
}

SampleOffsets SampleOffsets::equally_long(int64_t samples, int64_t length) {
  SampleOffsets offsets;
  offsets.samples_ = samples;
  offsets.length_ = length;
  offsets.end_ = samples * length;
  return offsets;
}

void SampleOffsets::push_back(int64_t end) {
  if (samples_ == 0) length_ = end;
  if (list_.empty() && !is_even()) {  // the last one is no longer the last
    list_.reserve(static_cast<size_t>(samples_) + 2);
    for (int64_t sample = 0; sample < samples_; ++sample) list_.push_back(sample * length_);
    list_.push_back(end_);
  }
  if (!list_.empty()) list_.push_back(end);
  ++samples_;
  end_ = end;
}

int64_t SampleOffsets::sample_of(int64_t token) const {
  if (list_.empty()) return length_ == 0 ? samples_ - 1 : std::min(token / length_, samples_ - 1);
  return std::upper_bound(list_.begin(), list_.end(), token) - list_.begin() - 1;
}

bool SampleOffsets::all_have_length(int64_t length) const {
  if (list_.empty()) return samples_ == 0 || (is_even() && length == length_);
  for (int64_t sample = 0; sample < samples_; ++sample)
    if (this->length(sample) != length) return false;
  return true;
}

std::string SampleOffsets::to_bytes() const {
  const int64_t head[3] = {samples_, end_, length_};
  std::string bytes(reinterpret_cast<const char*>(head), sizeof head);
  bytes.append(reinterpret_cast<const char*>(list_.data()), list_.size() * sizeof(int64_t));
  return bytes;
}

SampleOffsets SampleOffsets::from_bytes(std::string_view bytes) {
  int64_t head[3];
  expect(bytes.size() >= sizeof head, "SampleOffsets: too few bytes");
  std::memcpy(head, bytes.data(), sizeof head);
  bytes.remove_prefix(sizeof head);
  SampleOffsets offsets;
  offsets.samples_ = head[0];
  offsets.end_ = head[1];
  offsets.length_ = head[2];
  offsets.list_.resize(bytes.size() / sizeof(int64_t));
  if (!bytes.empty()) std::memcpy(offsets.list_.data(), bytes.data(), bytes.size());
  return offsets;
}

bool SampleOffsets::operator==(const SampleOffsets& other) const {
  if (samples_ != other.samples_ || end_ != other.end_) return false;
  for (int64_t sample = 0; sample < samples_; ++sample)
    if ((*this)[sample] != other[sample]) return false;
  return true;
}

void SampleNumbers::add(int64_t first_number, int64_t count) {
  if (runs_.empty() || runs_.back().number + samples_ - runs_.back().sample != first_number)
    runs_.push_back({samples_, first_number});
  samples_ += count;
}

int64_t SampleNumbers::operator[](int64_t sample) const {
  if (runs_.empty()) return sample;
  const auto next =
      std::upper_bound(runs_.begin(), runs_.end(), sample, [](int64_t at, const Run& run) { return at < run.sample; });
  const Run& run = *std::prev(next);
  return run.number + sample - run.sample;
}

}  // namespace lfm2
