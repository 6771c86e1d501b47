// Rows that the threads of a pool share.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"

namespace lfm2 {

// Calls f(row) for every row, in parallel; threads take cheap rows in groups.
template <class F>
void for_each_row(ThreadPool& pool, int64_t rows, int64_t row_numel, F&& f) {
  // This many elements take some microseconds, about as long as waking a thread.
  constexpr int64_t kWorthSharing = 16384;
  if (rows == 0) return;
  const int64_t group = row_numel >= kWorthSharing ? 1 : kWorthSharing / (row_numel + 1) + 1;
  const auto groups = static_cast<size_t>((rows + group - 1) / group);
  pool.parallel_for(groups, [&](size_t item, size_t) {
    const int64_t first = static_cast<int64_t>(item) * group;
    for (int64_t row = first; row < first + group && row < rows; ++row) f(row);
  });
}

}  // namespace lfm2
