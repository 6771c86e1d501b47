// Rows are hashed side by side: one thread would be slower than the bus.
#include "stage/results.h"

#include <fmt/format.h>

#include "kernels/error.h"

namespace lfm2 {

namespace {

void add_to(XXH128_hash_t& sum, XXH128_hash_t more) {
  sum.low64 += more.low64;
  sum.high64 += more.high64 + (sum.low64 < more.low64 ? 1 : 0);
}

}  // namespace

void ResultHash::take(const ResultRows& rows) {
  rows_.resize(static_cast<size_t>(rows.count));
  const auto hash_row = [&](size_t row, size_t) {
    XXH128_hash_t hash{};
    const auto add = [&](auto values) {
      const size_t columns = values.size() / rows_.size();
      if (columns == 0) return;
      add_to(hash, XXH3_128bits_withSeed(values.data() + row * columns, columns * sizeof values[0],
                                         static_cast<XXH64_hash_t>(rows.first) + row));
    };
    add(rows.logits);
    add(rows.top_ids);
    add(rows.top_log_probs);
    rows_[row] = hash;
  };
  if (threads_ != nullptr)
    threads_->parallel_for(rows_.size(), hash_row);
  else
    for (size_t row = 0; row < rows_.size(); ++row) hash_row(row, 0);
  for (const XXH128_hash_t& row : rows_) add_to(sum_, row);
}

void ResultHash::add(const ResultHash& other) { add_to(sum_, other.sum_); }

std::string ResultHash::hex() const { return fmt::format("{:016x}{:016x}", sum_.high64, sum_.low64); }

ResultHash ResultHash::from_hex(const std::string& text) {
  expect(text.size() == 32, "ResultHash::from_hex: not 32 digits");
  ResultHash hash;
  hash.sum_ = {.low64 = std::stoull(text.substr(16), nullptr, 16),
               .high64 = std::stoull(text.substr(0, 16), nullptr, 16)};
  return hash;
}

}  // namespace lfm2
