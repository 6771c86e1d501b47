// How long steps take by the number of their rows, as the first stage measures it. Times change with the lengths of the
// sequences, so old ones are forgotten.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace lfm2 {

class StepTimes {
 public:
  struct Estimate {
    double seconds = 0;     // 0: nothing is known
    bool measured = false;  // else it is a guess, which is rather too short, so that such a step is tried
  };

  // Numbers of rows that share a time, because their steps differ little, have the same value here: the smallest of
  // them. Up to 16 rows every number has its own time, then there are eight for each doubling.
  static int64_t rounded(int64_t rows) { return rows_at(index_of(rows)); }

  // `drafts`: whether the step has drafts. Such a step begins when the one before has returned, so the device waits for
  // the host before it.
  void add(int64_t rows, bool drafts, double seconds);
  Estimate estimate(int64_t rows, bool drafts) const;

 private:
  static constexpr size_t kExact = 16, kNumbers = kExact + 8 * 8, kKept = 5;
  struct Measured {
    std::array<double, kKept> seconds{};  // the newest ones
    size_t count = 0;                     // ever added
    int64_t step = 0;                     // when the newest one was added
  };
  using Table = std::array<Measured, kNumbers>;

  static size_t index_of(int64_t rows);
  static int64_t rows_at(size_t index);
  static double median(const Measured& one);
  bool is_known(const Measured& one) const;
  double guess(const Table& table, int64_t rows) const;

  Table plain_, drafting_;
  int64_t steps_ = 0;  // how many were added
};

}  // namespace lfm2
