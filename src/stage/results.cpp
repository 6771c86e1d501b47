// Rows are hashed side by side: one thread would be slower than the bus.
#include "stage/results.h"

namespace lfm2 {

void ResultHash::take(const ResultRows& rows) {
  rows_.resize(static_cast<size_t>(rows.count));
  const auto hash_row = [&](size_t row, size_t) {
    Checksum checksum;
    const auto add = [&](auto values) {
      const size_t columns = values.size() / rows_.size();
      checksum.add(std::as_bytes(values.subspan(row * columns, columns)));
    };
    add(rows.logits);
    add(rows.top_ids);
    add(rows.top_log_probs);
    rows_[row] = checksum.digest();
  };
  if (threads_ != nullptr)
    threads_->parallel_for(rows_.size(), hash_row);
  else
    for (size_t row = 0; row < rows_.size(); ++row) hash_row(row, 0);
  checksum_.add(std::as_bytes(std::span(rows_)));
}

}  // namespace lfm2
