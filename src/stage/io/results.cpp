// Rows are hashed in parallel, because one thread would be slower than the bus.
#include "stage/io/results.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/element_range.h"

namespace lfm2 {

std::string_view positions_name(const ResultKind& kind) {
  if (kind.score) return "scored";
  if (kind.hidden == Hidden::kMean) return "mean";
  if (kind.hidden != Hidden::kNone) return kind.hidden == Hidden::kLast ? "last" : "all";
  switch (kind.positions) {
    case Positions::kLast:
      return "last";
    case Positions::kAll:
      return "all";
    case Positions::kNone:
      return "none";
  }
  return "?";
}

std::string states_name(const ResultKind& kind) {
  return kind.after_layer > 0 ? fmt::format("after layer {}", kind.after_layer) : "after the final norm";
}

ResultRows some_rows(const ResultRows& rows, int64_t skip, int64_t count, int64_t first) {
  const auto part = [&](auto values) {
    const size_t columns = values.size() / static_cast<size_t>(rows.count);
    return values.subspan(static_cast<size_t>(skip) * columns, static_cast<size_t>(count) * columns);
  };
  return {.first = first,
          .count = count,
          .logits = part(rows.logits),
          .top_ids = part(rows.top_ids),
          .is_greedy = part(rows.is_greedy),
          .log_probs = part(rows.log_probs)};
}

namespace {

bool any_not_finite(std::span<const float> values) {
  const auto bytes = std::as_bytes(values);
  return count_in(non_finite_range(DType::kF32), DType::kF32, bytes.data(), values.size()) > 0;
}

// A logit of -infinity is valid, unless all of them are: its token is never drawn.
bool is_of_no_numbers(std::span<const float> logits) {
  if (!any_not_finite(logits)) return false;
  const auto bad = [](float x) { return std::isnan(x) || x == HUGE_VALF; };
  return std::any_of(logits.begin(), logits.end(), bad) ||
         std::all_of(logits.begin(), logits.end(), [](float x) { return x == -HUGE_VALF; });
}

}  // namespace

bool is_not_finite(const ResultRows& row, bool states) {
  if (!row.logits.empty()) return states ? any_not_finite(row.logits) : is_of_no_numbers(row.logits);
  if (!row.is_greedy.empty()) return any_not_finite(row.log_probs);
  return !row.log_probs.empty() && std::isnan(row.log_probs.front());
}

void NotFiniteRows::consume_row(const ResultRows& row) {
  if (!is_not_finite(row, states_)) return;
  ++count_;
  for (int64_t first = first_row_; row.first < first && !first_row_.compare_exchange_weak(first, row.first);) {
  }
}

void ResultHash::consume(const ResultRows& rows) {
  rows_.assign(static_cast<size_t>(rows.count), HashSum());
  const auto hash_row = [&](size_t number, size_t) {
    const ResultRows row = some_rows(rows, static_cast<int64_t>(number), 1, rows.first + static_cast<int64_t>(number));
    const auto add = [&](auto values) {
      if (!values.empty()) rows_[number].add(std::as_bytes(values), static_cast<uint64_t>(row.first));
    };
    add(row.logits);
    add(row.top_ids);
    add(row.is_greedy);
    add(row.log_probs);
    for (RowConsumer* consumer : beside_) consumer->consume_row(row);
  };
  if (threads_ != nullptr)
    threads_->parallel_for(rows_.size(), hash_row);
  else
    for (size_t row = 0; row < rows_.size(); ++row) hash_row(row, 0);
  for (const HashSum& row : rows_) sum_.add(row);
}

int64_t RenumberedRows::number_of(int64_t row) const {
  if (positions_ != Positions::kAll) return numbers_[row];
  const int64_t sample = offsets_.sample_of(row);
  return all_offsets_[numbers_[sample]] + row - offsets_[sample];
}

void RenumberedRows::consume(const ResultRows& rows) {
  for (int64_t row = 0; row < rows.count;) {
    const int64_t first = number_of(rows.first + row);
    int64_t count = 1;
    while (row + count < rows.count && number_of(rows.first + row + count) == first + count) ++count;
    for (ResultConsumer* consumer : consumers_) consumer->consume(some_rows(rows, row, count, first));
    row += count;
  }
}

void SampleCounter::consume(const ResultRows& rows) {
  const bool all = positions_ == Positions::kAll;
  int64_t sample = all ? offsets_.sample_of(rows.first) : rows.first;
  const int64_t first = sample;
  HashSum whole;
  for (int64_t row = 0; row < rows.count; ++row) {
    open_.add(hash_.rows()[static_cast<size_t>(row)]);
    if (all && rows.first + row + 1 < offsets_[sample + 1]) continue;
    whole.add(std::exchange(open_, {}));
    ++sample;
  }
  count_ += sample - first;
  if (sample > first && file_ != nullptr) file_->finished(first, sample - first, whole);
}

}  // namespace lfm2
