// Several threads, and several ranks of a host, write rows at once.
#include "stage/io/row_places.h"

#include <algorithm>
#include <bit>
#include <vector>

namespace lfm2 {

namespace {

static_assert(std::endian::native == std::endian::little, "rows are little-endian, and so is the code here");

}  // namespace

int64_t row_columns(const OutputJob& job) {
  if (job.kind.columns() > 0) return job.kind.columns();
  return job.kind.hidden != Hidden::kNone ? job.hidden : job.vocab;
}

uint64_t bytes_of_rows(const OutputJob& job) {
  return static_cast<uint64_t>(job.rows() * row_columns(job)) * sizeof(float);
}

void for_each_place(const OutputJob& job, const RowOffsets& places, const ResultRows& rows,
                    const std::function<void(uint64_t, std::span<const std::byte>)>& write) {
  const auto write_at = [&](uint64_t begin, auto values, int64_t columns) {
    write(begin + static_cast<uint64_t>(rows.first * columns) * sizeof(float), std::as_bytes(values));
  };
  if (!rows.logits.empty()) write_at(places.first, rows.logits, row_columns(job));
  if (rows.log_probs.empty()) return;
  write_at(places.first, job.kind.score ? rows.is_greedy : rows.top_ids, job.kind.columns());
  write_at(places.second, rows.log_probs, job.kind.columns());
}

uint64_t RowPlaces::end() const { return std::max(places_.first, places_.second) + bytes_of_rows(job_); }

void RowPlaces::map() { mapping_ = map_for_writing(partial_.file(), end(), partial_.path()); }

void RowPlaces::write(const ResultRows& rows) {
  for_each_place(job_, places_, rows, [this](uint64_t offset, std::span<const std::byte> bytes) {
    if (mapping_)
      mapping_.write(offset, bytes);
    else
      write_fully(partial_.file(), offset, bytes, partial_.path());
  });
}

void RowPlaces::read(int64_t first, int64_t count, ResultConsumer& consumer) const {
  const auto read = [&](uint64_t begin, auto& values, int64_t columns) {
    values.resize(static_cast<size_t>(count * columns));
    partial_.read(begin + static_cast<uint64_t>(first * columns) * sizeof(float),
                  std::as_writable_bytes(std::span(values)));
  };
  std::vector<float> floats;
  std::vector<int32_t> integers;
  ResultRows rows{.first = first, .count = count};
  if (const int64_t columns = job_.kind.columns(); columns > 0) {
    read(places_.first, integers, columns);
    read(places_.second, floats, columns);
    (job_.kind.score ? rows.is_greedy : rows.top_ids) = integers;
    rows.log_probs = floats;
  } else {
    read(places_.first, floats, row_columns(job_));
    rows.logits = floats;
  }
  consumer.consume(rows);
}

}  // namespace lfm2
