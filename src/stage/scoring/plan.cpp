// Micro-batches are cut greedily, sample by sample. Only where each one ends is kept.
#include "stage/scoring/plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "stage/model/memory_plan.h"

namespace lfm2 {

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

// A round has a micro-batch for each replica. The last one is an even share of the tokens that are left. In a long job
// rounds of half a share lead to it, because one replica may be slower than another.
int64_t largest_of_round(int64_t tokens_left, const BatchPlan& plan, const MicroBatches::Size& size) {
  constexpr int64_t kLongJob = 8, kSmallest = 8;
  if (tokens_left > size.tokens * size.replicas) return size.tokens;
  const int64_t share = (tokens_left + size.replicas - 1) / size.replicas + plan.tokens / plan.samples - 1;
  const bool long_job = plan.tokens > kLongJob * size.replicas * size.tokens;
  return std::min(long_job ? std::max(share / 2, std::min(share, size.tokens / kSmallest)) : share, size.tokens);
}

}  // namespace

MicroBatches::MicroBatches(const SampleOffsets& offsets, std::span<const int32_t> ids, Size size,
                           const SampleOffsets* scored)
    : offsets_(&offsets), scored_(scored), ids_(ids) {
  expect(offsets.samples() >= 1, "MicroBatches: no samples");
  plan_.samples = offsets.samples();
  plan_.tokens = offsets.back();
  MicroBatch open;
  int64_t largest = size.tokens, closed = 0;
  const auto close = [&] {
    if (open.samples > 0) {
      add(open);
      ++closed;
    }
    open = {.first_sample = ends_.back(), .first_token = token_ends_.back()};
    if (size.replicas > 1 && closed % size.replicas == 0)
      largest = largest_of_round(plan_.tokens - open.first_token, plan_, size);
  };
  close();
  for (int64_t sample = 0; sample < plan_.samples; ++sample) {
    const int64_t length = offsets.length(sample);
    if (size.samples == 0 && open.tokens + length > largest) close();
    if (const int64_t parts = MicroBatches::parts(length, size); parts > 1) {
      for (int64_t part = 0; part < parts; ++part) {
        const int64_t past = end_of_parts(length, size.growth, part, parts),
                      end = end_of_parts(length, size.growth, part + 1, parts);
        add({.first_sample = sample,
             .samples = part + 1 == parts ? 1 : 0,
             .first_token = offsets[sample] + past,
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
  const int64_t past = one.first_token - (*offsets_)[one.first_sample], whole = offsets_->length(one.first_sample);
  if (past > 0 || one.tokens < whole) {
    one.past = past;
    one.whole = whole;
  }
  if (scored_ != nullptr) find_scored(one);
  return one;
}

// The row of a token gives the log-probability of the next token. So a part scores the tokens that follow its own.
void MicroBatches::find_scored(MicroBatch& one) const {
  one.first_scored = (*scored_)[one.first_sample];
  one.scored = (*scored_)[one.first_sample + one.samples] - one.first_scored;
  if (!one.is_part()) return;
  const int64_t scored = scored_->length(one.first_sample), first = one.whole - scored;
  const auto before = [&](int64_t token) { return std::clamp<int64_t>(token - first, 0, scored); };
  const int64_t begin = before(one.past + 1), end = before(one.past + one.tokens + 1);
  one.first_scored += begin;
  one.scored = end - begin;
}

MicroBatchContent MicroBatches::content(int64_t index) const {
  MicroBatchContent content{.samples = (*this)[index], .lengths = {}, .scored = {}, .targets = {}, .ids = {}};
  const MicroBatch& one = content.samples;
  const auto copy = [this](int64_t first, int64_t count, std::vector<int32_t>& into) {
    const auto ids = ids_.subspan(static_cast<size_t>(first), static_cast<size_t>(count));
    into.insert(into.end(), ids.begin(), ids.end());
  };
  copy(one.first_token, one.tokens, content.ids);
  const auto add = [&](int64_t sample, int64_t length, int64_t scored, int64_t scored_before) {
    content.lengths.push_back(static_cast<int32_t>(length));
    if (scored_ == nullptr) return;
    content.scored.push_back(static_cast<int32_t>(scored));
    copy((*offsets_)[sample + 1] - scored_->length(sample) + scored_before, scored, content.targets);
  };
  if (one.is_part())
    add(one.first_sample, one.tokens, one.scored,
        scored_ != nullptr ? one.first_scored - (*scored_)[one.first_sample] : 0);
  else
    for (int64_t sample = one.first_sample; sample < one.first_sample + one.samples; ++sample)
      add(sample, offsets_->length(sample), scored_ != nullptr ? scored_->length(sample) : 0, 0);
  return content;
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
