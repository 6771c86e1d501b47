// Rows are hashed side by side: one thread would be slower than the bus.
#include "stage/results.h"

namespace lfm2 {

void ResultHash::take(const ResultRows& rows) {
  rows_.assign(static_cast<size_t>(rows.count), HashSum());
  const auto hash_row = [&](size_t row, size_t) {
    const auto add = [&](auto values) {
      const size_t columns = values.size() / rows_.size();
      if (columns == 0) return;
      rows_[row].add(std::as_bytes(values.subspan(row * columns, columns)), static_cast<uint64_t>(rows.first) + row);
    };
    add(rows.logits);
    add(rows.top_ids);
    add(rows.top_log_probs);
  };
  if (threads_ != nullptr)
    threads_->parallel_for(rows_.size(), hash_row);
  else
    for (size_t row = 0; row < rows_.size(); ++row) hash_row(row, 0);
  for (const HashSum& row : rows_) sum_.add(row);
}

}  // namespace lfm2
