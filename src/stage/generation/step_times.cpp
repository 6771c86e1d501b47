#include "stage/generation/step_times.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace lfm2 {

namespace {

// Measurements are forgotten after these steps, times their number up to kSure: an outlier is measured again soon.
constexpr int64_t kLifetime = 256;
constexpr size_t kSure = 4;
// The guess above the largest measured number of rows: time grows with this power of the rows.
constexpr double kGuessedGrowth = 1.0 / 6;

}  // namespace

size_t StepTimes::index_of(int64_t rows) {
  const auto number = static_cast<uint64_t>(rows);
  if (number < kExact) return number;
  const auto bits = static_cast<size_t>(std::bit_width(number));
  return std::min(kExact + 8 * (bits - 5) + (number >> (bits - 4)) - 8, kNumbers - 1);
}

int64_t StepTimes::rows_at(size_t index) {
  if (index < kExact) return static_cast<int64_t>(index);
  return static_cast<int64_t>((8 + (index - kExact) % 8) << ((index - kExact) / 8 + 1));
}

void StepTimes::add(int64_t rows, bool drafts, double seconds) {
  Measured& one = (drafts ? drafting_ : plain_)[index_of(rows)];
  ++steps_;
  if (!is_known(one)) one.count = 0;
  one.seconds[one.count++ % kKept] = seconds;
  one.step = steps_;
}

bool StepTimes::is_known(const Measured& one) const {
  return one.count > 0 && steps_ - one.step <= kLifetime * static_cast<int64_t>(std::min(one.count, kSure));
}

// The lower one of an even number.
double StepTimes::median(const Measured& one) {
  auto sorted = one.seconds;
  const auto count = static_cast<std::ptrdiff_t>(std::min(one.count, kKept)), middle = (count - 1) / 2;
  std::nth_element(sorted.begin(), sorted.begin() + middle, sorted.begin() + count);
  return sorted[static_cast<size_t>(middle)];
}

StepTimes::Estimate StepTimes::estimate(int64_t rows, bool drafts) const {
  const Measured& one = (drafts ? drafting_ : plain_)[index_of(rows)];
  if (is_known(one)) return {.seconds = median(one), .measured = true};
  // A step with drafts is no faster than one of the same rows without.
  const double plain = guess(plain_, rows);
  return {.seconds = drafts ? std::max(plain, guess(drafting_, rows)) : plain};
}

// Between two measured numbers of rows, time is taken for a power of the rows; below the smallest, as proportional.
double StepTimes::guess(const Table& table, int64_t rows) const {
  const auto is_measured = [&](const Measured& one) { return is_known(one); };
  const auto middle = table.begin() + static_cast<std::ptrdiff_t>(index_of(rows));
  const auto above = std::find_if(middle, table.end(), is_measured);
  const auto past_below = std::find_if(std::make_reverse_iterator(middle), table.rend(), is_measured).base();
  const auto rows_of = [&](auto at) { return static_cast<double>(rows_at(static_cast<size_t>(at - table.begin()))); };
  const auto number = static_cast<double>(rows);
  const bool has_below = past_below != table.begin();
  if (above == table.end() && !has_below) return 0;
  if (!has_below) return median(*above) * std::min(1.0, number / rows_of(above));
  const auto below = past_below - 1;
  const double low = median(*below), ratio = number / rows_of(below);
  if (above == table.end()) return low * std::pow(ratio, kGuessedGrowth);
  if (above == middle) return median(*above);
  const double high = median(*above);
  return low * std::pow(high / low, std::log(ratio) / std::log(rows_of(above) / rows_of(below)));
}

}  // namespace lfm2
