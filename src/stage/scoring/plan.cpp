// Micro-batches are cut greedily, sample by sample. Only where each one ends is kept.
#include "stage/scoring/plan.h"

#include <algorithm>
#include <numeric>

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

int64_t BatchPlan::max_rows(const ResultKind& kind) const {
  if (kind.score) return max_scored;
  if (kind.hidden != Hidden::kNone) return kind.of_last_positions() ? max_samples : max_tokens;
  switch (kind.positions) {
    case Positions::kLast:
      return max_samples;
    case Positions::kAll:
      return max_tokens;
    case Positions::kNone:
      return 0;
  }
  return 0;
}

MicroBatches::MicroBatches(const SampleOffsets& offsets, std::span<const int32_t> ids, SampleRange range,
                           int64_t micro_batch, int64_t target_tokens, const SampleOffsets* scored)
    : offsets_(&offsets), scored_(scored), ids_(ids), range_(range) {
  expect(range.count >= 1 && range.first >= 0 && range.first + range.count <= offsets.samples(),
         "MicroBatches: no samples");
  plan_.first_sample = range.first;
  plan_.first_token = offsets[range.first];
  plan_.samples = range.count;
  plan_.tokens = offset(range.count);
  if (scored != nullptr) plan_.first_scored = (*scored)[range.first];
  MicroBatch open;
  const auto close = [&] {
    const int64_t first = range.first + open.first_sample;
    if (scored != nullptr)
      plan_.max_scored = std::max(plan_.max_scored, (*scored)[first + open.samples] - (*scored)[first]);
    ends_.push_back(open.first_sample + open.samples);
    ++plan_.micro_batches;
    plan_.max_tokens = std::max(plan_.max_tokens, open.tokens);
    plan_.max_samples = std::max(plan_.max_samples, open.samples);
    open = {.first_sample = open.first_sample + open.samples, .first_token = open.first_token + open.tokens};
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
  MicroBatch one{.first_sample = begin,
                 .samples = end - begin,
                 .first_token = offset(begin),
                 .tokens = offset(end) - offset(begin)};
  if (scored_ != nullptr) {
    one.first_scored = (*scored_)[range_.first + begin] - plan_.first_scored;
    one.scored = (*scored_)[range_.first + end] - (*scored_)[range_.first + begin];
  }
  return one;
}

std::span<const int32_t> MicroBatches::ids(int64_t index) const {
  const MicroBatch one = (*this)[index];
  return ids_.subspan(static_cast<size_t>(one.first_token), static_cast<size_t>(one.tokens));
}

std::vector<int32_t> MicroBatches::message(int64_t index) const {
  if (scored_ != nullptr) return scoring_message(index);
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

std::vector<int32_t> MicroBatches::scoring_message(int64_t index) const {
  const MicroBatch one = (*this)[index];
  const int64_t end = one.first_sample + one.samples;
  std::vector<int32_t> words{static_cast<int32_t>(one.samples)};
  words.reserve(static_cast<size_t>(1 + 2 * one.samples + one.scored));
  for (int64_t sample = one.first_sample; sample < end; ++sample) words.push_back(static_cast<int32_t>(length(sample)));
  for (int64_t sample = one.first_sample; sample < end; ++sample)
    words.push_back(static_cast<int32_t>(scored_->length(range_.first + sample)));
  for (int64_t sample = one.first_sample; sample < end; ++sample) {
    const auto scored = static_cast<size_t>(scored_->length(range_.first + sample));
    const std::span<const int32_t> targets = ids_.subspan(static_cast<size_t>(offset(sample + 1)) - scored, scored);
    words.insert(words.end(), targets.begin(), targets.end());
  }
  return words;
}

MicroBatchContent content_of_message(std::span<const int32_t> words, bool scored) {
  expect(words.size() >= 2 && words[0] >= 1, "content_of_message: a message of another length");
  const auto samples = static_cast<size_t>(words[0]);
  const std::span<const int32_t> rest = words.subspan(1);
  if (scored) {
    expect(rest.size() >= 2 * samples, "content_of_message: a message of another length");
    const std::span<const int32_t> lengths = rest.first(samples), counts = rest.subspan(samples, samples),
                                   targets = rest.subspan(2 * samples);
    expect(std::accumulate(counts.begin(), counts.end(), int64_t{0}) == std::ssize(targets),
           "content_of_message: a message of another length");
    return {{lengths.begin(), lengths.end()}, {counts.begin(), counts.end()}, {targets.begin(), targets.end()}};
  }
  expect(rest.size() == 1 || rest.size() == samples, "content_of_message: a message of another length");
  if (rest.size() == 1) return {std::vector<int32_t>(samples, rest[0]), {}, {}};
  return {{rest.begin(), rest.end()}, {}, {}};
}

int64_t choose_target_tokens(int64_t total_tokens, PipelineShape shape, int64_t largest) {
  int64_t micro_batches = std::max<int64_t>(1, 6 * (shape.stages - 1) / shape.pieces);
  if (shape.ring()) micro_batches = std::max(micro_batches, Schedule::smallest_group(shape));
  return std::clamp<int64_t>((total_tokens + micro_batches - 1) / micro_batches, 1, largest);
}

}  // namespace lfm2
