// Micro-batches are cut greedily, sample by sample. Only where each one ends is kept.
#include "stage/scoring/plan.h"

#include <algorithm>

#include "kernels/error.h"

namespace lfm2 {

SampleRange replica_samples(const SampleOffsets& offsets, int64_t replicas, int64_t replica) {
  const int64_t samples = offsets.samples();
  if (samples < replicas)
    throw Error(ExitCode::kUsage,
                fmt::format("--replicas {} for {} samples: expected at most one a sample", replicas, samples));
  // Replica r begins at the first sample behind r equal shares of the tokens, and leaves at least one sample for every
  // other replica.
  const auto begin = [&](int64_t r) {
    const int64_t share = offsets.back() / replicas * r + offsets.back() % replicas * r / replicas;
    return r == replicas ? samples : std::clamp<int64_t>(offsets.first_behind(share), r, samples - (replicas - r));
  };
  return {begin(replica), begin(replica + 1) - begin(replica)};
}

MicroBatches::MicroBatches(const SampleOffsets& offsets, std::span<const int32_t> ids, SampleRange range,
                           int64_t micro_batch, int64_t target_tokens)
    : offsets_(&offsets), ids_(ids), range_(range) {
  expect(range.count >= 1 && range.first >= 0 && range.first + range.count <= offsets.samples(),
         "MicroBatches: no samples");
  plan_.first_sample = range.first;
  plan_.first_token = offsets[range.first];
  plan_.samples = range.count;
  plan_.tokens = offset(range.count);
  MicroBatch open;
  const auto close = [&] {
    ends_.push_back(open.first_sample + open.samples);
    ++plan_.micro_batches;
    plan_.max_tokens = std::max(plan_.max_tokens, open.tokens);
    plan_.max_samples = std::max(plan_.max_samples, open.samples);
    open = {open.first_sample + open.samples, 0, open.first_token + open.tokens, 0};
  };
  for (int64_t sample = 0; sample < range.count; ++sample) {
    const int64_t length = this->length(sample);
    if (micro_batch == 0 && open.samples > 0 && open.tokens + length > target_tokens) close();
    ++open.samples;
    open.tokens += length;
    if (micro_batch > 0 && open.samples == micro_batch) close();
  }
  if (open.samples > 0) close();
}

MicroBatch MicroBatches::operator[](int64_t index) const {
  const int64_t begin = ends_[index], end = ends_[index + 1];
  return {begin, end - begin, offset(begin), offset(end) - offset(begin)};
}

std::span<const int32_t> MicroBatches::ids(int64_t index) const {
  const MicroBatch one = (*this)[index];
  return ids_.subspan(static_cast<size_t>(one.first_token), static_cast<size_t>(one.tokens));
}

std::vector<int32_t> MicroBatches::lengths_message(int64_t index) const {
  const MicroBatch one = (*this)[index];
  std::vector<int32_t> words{static_cast<int32_t>(one.samples)};
  bool equal = true;
  for (int64_t sample = one.first_sample; sample < one.first_sample + one.samples; ++sample) {
    words.push_back(static_cast<int32_t>(length(sample)));
    equal = equal && words.back() == words[1];
  }
  if (equal) words.resize(2);
  return words;
}

std::vector<int32_t> lengths_of_message(std::span<const int32_t> words) {
  expect(words.size() >= 2 && words[0] >= 1 && (words.size() == 2 || words.size() == static_cast<size_t>(words[0]) + 1),
         "lengths_of_message: a message of another length");
  if (words.size() == 2) return std::vector<int32_t>(static_cast<size_t>(words[0]), words[1]);
  return {words.begin() + 1, words.end()};
}

int64_t choose_target_tokens(int64_t total_tokens, int64_t stages, int64_t largest) {
  const int64_t micro_batches = stages == 1 ? 1 : 6 * (stages - 1);
  return std::clamp<int64_t>((total_tokens + micro_batches - 1) / micro_batches, 1, largest);
}

}  // namespace lfm2
