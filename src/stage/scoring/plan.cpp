// Micro-batches are cut greedily, sample by sample. Only where each one ends is kept.
#include "stage/scoring/plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "stage/model/memory_plan.h"

namespace lfm2 {

SampleRange replica_samples(const SampleOffsets& offsets, int64_t replicas, int64_t replica) {
  const int64_t samples = offsets.samples();
  if (samples < replicas)
    throw Error(ExitCode::kUsage,
                fmt::format("--replicas {} for {} samples: expected at most one a sample", replicas, samples));
  // Replica r begins at the first sample after r equal shares of the tokens. A long sample may cover several of those
  // boundaries, so each replica keeps one sample at least, and leaves one for every later replica.
  int64_t begin = 0, end = 0;
  for (int64_t r = 0; r <= replica; ++r) {
    begin = end;
    const int64_t next = r + 1;
    const int64_t shares = offsets.back() / replicas * next + offsets.back() % replicas * next / replicas;
    end = next == replicas ? samples
                           : std::clamp<int64_t>(offsets.first_behind(shares), begin + 1, samples - (replicas - next));
  }
  return {begin, end - begin};
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

namespace {

// The cost of a sample's first tokens, in costs of its first token, and the number of tokens with a given cost.
double cost_of(int64_t tokens, double growth) {
  const auto count = static_cast<double>(tokens);
  return count * (1 + growth * count / 2);
}
double tokens_of(double cost, double growth) {
  return growth == 0 ? cost : (std::sqrt(1 + 2 * growth * cost) - 1) / growth;
}

// The number of tokens in the first `count` of `parts` parts.
int64_t end_of_parts(int64_t length, double growth, int64_t count, int64_t parts) {
  if (growth == 0 || count == parts) return length * count / parts;
  const double share = static_cast<double>(count) / static_cast<double>(parts);
  return static_cast<int64_t>(tokens_of(share * cost_of(length, growth), growth));
}

}  // namespace

MicroBatches::MicroBatches(const SampleOffsets& offsets, std::span<const int32_t> ids, SampleRange range, Size size,
                           const SampleOffsets* scored)
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
    if (open.samples > 0) add(open);
    open = {.first_sample = ends_.back(), .first_token = token_ends_.back()};
  };
  for (int64_t sample = 0; sample < range.count; ++sample) {
    const int64_t length = this->length(sample);
    if (size.samples == 0 && open.tokens + length > size.tokens) close();
    if (const int64_t parts = MicroBatches::parts(length, size); parts > 1) {
      for (int64_t part = 0; part < parts; ++part) {
        const int64_t past = end_of_parts(length, size.growth, part, parts),
                      end = end_of_parts(length, size.growth, part + 1, parts);
        add({.first_sample = sample,
             .samples = part + 1 == parts ? 1 : 0,
             .first_token = offset(sample) + past,
             .tokens = end - past,
             .past = past,
             .whole = length});
      }
      close();
      continue;
    }
    ++open.samples;
    open.tokens += length;
    if (size.samples > 0 && open.samples == size.samples) close();
  }
  close();
}

int64_t MicroBatches::parts(int64_t length, const Size& size) {
  if (size.samples > 0 || size.smallest_part == 0 || length <= size.tokens) return 1;
  const int64_t part = size.part > 0 ? std::min(size.part, size.tokens) : size.tokens;
  const auto wanted = static_cast<int64_t>(std::round(cost_of(length, size.growth) / cost_of(part, size.growth)));
  return std::min(wanted, max_parts(length, size));
}

// The last part is the smallest. At `smallest_part`, its tokens cost at most what the sample's last token does.
int64_t MicroBatches::max_parts(int64_t length, const Size& size) {
  if (size.smallest_part == 0) return 1;
  const double last = 1 + size.growth * static_cast<double>(length);
  return std::max<int64_t>(
      1, static_cast<int64_t>(cost_of(length, size.growth) / (last * static_cast<double>(size.smallest_part))));
}

int64_t MicroBatches::largest_part(int64_t length, const Size& size, int64_t parts) {
  return static_cast<int64_t>(
      std::ceil(tokens_of(cost_of(length, size.growth) / static_cast<double>(parts), size.growth)));
}

void MicroBatches::add(const MicroBatch& one) {
  ends_.push_back(one.first_sample + one.samples);
  token_ends_.push_back(one.first_token + one.tokens);
  ++plan_.micro_batches;
  plan_.max_tokens = std::max(plan_.max_tokens, one.tokens);
  plan_.max_samples = std::max<int64_t>({plan_.max_samples, one.samples, 1});
  plan_.longest_in_parts = std::max(plan_.longest_in_parts, one.whole);
  if (scored_ == nullptr) return;
  MicroBatch with_scored = one;
  find_scored(with_scored);
  plan_.max_scored = std::max(plan_.max_scored, with_scored.scored);
}

MicroBatch MicroBatches::operator[](int64_t index) const {
  MicroBatch one{.first_sample = ends_[index],
                 .samples = ends_.length(index),
                 .first_token = token_ends_[index],
                 .tokens = token_ends_.length(index)};
  const int64_t past = one.first_token - offset(one.first_sample), whole = length(one.first_sample);
  if (past > 0 || one.tokens < whole) {
    one.past = past;
    one.whole = whole;
  }
  if (scored_ != nullptr) find_scored(one);
  return one;
}

// The row of a token gives the log-probability of the next token. So a part scores the tokens that follow its own.
void MicroBatches::find_scored(MicroBatch& one) const {
  const auto at = [&](int64_t sample) { return (*scored_)[range_.first + sample] - plan_.first_scored; };
  one.first_scored = at(one.first_sample);
  one.scored = at(one.first_sample + one.samples) - one.first_scored;
  if (!one.is_part()) return;
  const int64_t scored = scored_of(one.first_sample), first = one.whole - scored;
  const auto before = [&](int64_t token) { return std::clamp<int64_t>(token - first, 0, scored); };
  const int64_t begin = before(one.past + 1), end = before(one.past + one.tokens + 1);
  one.first_scored += begin;
  one.scored = end - begin;
}

std::span<const int32_t> MicroBatches::ids(int64_t index) const {
  const MicroBatch one = (*this)[index];
  return ids_.subspan(static_cast<size_t>(one.first_token), static_cast<size_t>(one.tokens));
}

std::vector<int32_t> MicroBatches::message(int64_t index) const {
  const MicroBatch one = (*this)[index];
  if (one.is_part()) return part_message(one);
  if (scored_ != nullptr) return scoring_message(index);
  std::vector<int32_t> words{static_cast<int32_t>(one.samples)};
  bool equal = true;
  for (int64_t sample = one.first_sample; sample < one.first_sample + one.samples; ++sample) {
    words.push_back(static_cast<int32_t>(length(sample)));
    equal = equal && words.back() == words[1];
  }
  if (equal) words.resize(2);
  return words;
}

std::vector<int32_t> MicroBatches::part_message(const MicroBatch& one) const {
  std::vector<int32_t> words{0, static_cast<int32_t>(one.past), static_cast<int32_t>(one.whole),
                             static_cast<int32_t>(one.tokens)};
  if (one.scored == 0) return words;
  const int64_t sample = one.first_sample,
                first = offset(sample + 1) - scored_of(sample) +  // the place of its first scored token
                        one.first_scored - ((*scored_)[range_.first + sample] - plan_.first_scored);
  const std::span<const int32_t> targets = ids_.subspan(static_cast<size_t>(first), static_cast<size_t>(one.scored));
  words.insert(words.end(), targets.begin(), targets.end());
  return words;
}

std::vector<int32_t> MicroBatches::scoring_message(int64_t index) const {
  const MicroBatch one = (*this)[index];
  const int64_t end = one.first_sample + one.samples;
  std::vector<int32_t> words{static_cast<int32_t>(one.samples)};
  words.reserve(static_cast<size_t>(1 + 2 * one.samples + one.scored));
  for (int64_t sample = one.first_sample; sample < end; ++sample) words.push_back(static_cast<int32_t>(length(sample)));
  for (int64_t sample = one.first_sample; sample < end; ++sample)
    words.push_back(static_cast<int32_t>(scored_of(sample)));
  for (int64_t sample = one.first_sample; sample < end; ++sample) {
    const auto scored = static_cast<size_t>(scored_of(sample));
    const std::span<const int32_t> targets = ids_.subspan(static_cast<size_t>(offset(sample + 1)) - scored, scored);
    words.insert(words.end(), targets.begin(), targets.end());
  }
  return words;
}

namespace {

MicroBatchContent content_of_part(std::span<const int32_t> words, bool scored) {
  expect(words.size() >= 4 && (scored || words.size() == 4), "content_of_message: a message of another length");
  const int32_t past = words[1], whole = words[2], length = words[3];
  const std::span<const int32_t> targets = words.subspan(4);
  expect(past >= 0 && length >= 1 && past + length <= whole && std::ssize(targets) <= length,
         "content_of_message: no part of a sample");
  return {.lengths = {length},
          .scored = {static_cast<int32_t>(targets.size())},
          .targets = {targets.begin(), targets.end()},
          .past = past,
          .whole = whole};
}

}  // namespace

MicroBatchContent content_of_message(std::span<const int32_t> words, bool scored) {
  if (!words.empty() && words[0] == 0) return content_of_part(words, scored);
  expect(words.size() >= 2 && words[0] >= 1, "content_of_message: a message of another length");
  const auto samples = static_cast<size_t>(words[0]);
  const std::span<const int32_t> rest = words.subspan(1);
  if (scored) {
    expect(rest.size() >= 2 * samples, "content_of_message: a message of another length");
    const std::span<const int32_t> lengths = rest.first(samples), counts = rest.subspan(samples, samples),
                                   targets = rest.subspan(2 * samples);
    expect(std::accumulate(counts.begin(), counts.end(), int64_t{0}) == std::ssize(targets),
           "content_of_message: a message of another length");
    return {.lengths = {lengths.begin(), lengths.end()},
            .scored = {counts.begin(), counts.end()},
            .targets = {targets.begin(), targets.end()}};
  }
  expect(rest.size() == 1 || rest.size() == samples, "content_of_message: a message of another length");
  if (rest.size() == 1) return {.lengths = std::vector<int32_t>(samples, rest[0]), .scored = {}, .targets = {}};
  return {.lengths = {rest.begin(), rest.end()}, .scored = {}, .targets = {}};
}

int64_t max_measured_target(DType compute, const ResultKind& results, int64_t length) {
  if (compute == DType::kF32) return kMaxMeasuredFp32Target;
  const bool few_rows = results.of_last_positions() && kMaxFewRowsTarget / length <= kMaxResultRows;
  return few_rows ? kMaxFewRowsTarget : kMaxMeasuredTarget;
}

int64_t choose_target_tokens(int64_t total_tokens, PipelineShape shape, int64_t largest) {
  int64_t micro_batches = std::max<int64_t>(1, 6 * (shape.stages - 1) / shape.pieces);
  if (shape.ring()) micro_batches = std::max(micro_batches, Schedule::smallest_group(shape));
  return std::clamp<int64_t>((total_tokens + micro_batches - 1) / micro_batches, 1, largest);
}

}  // namespace lfm2
