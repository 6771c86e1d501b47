// Writes rows through a mapping, or block by block if several hosts write.
#include "stage/io/row_places.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"

namespace lfm2 {

namespace {

static_assert(std::endian::native == std::endian::little, "rows are little-endian, and so is the code here");

// Precedes each seam's bytes.
struct SeamHead {
  uint64_t offset = 0, bytes = 0;
};

}  // namespace

int64_t row_columns(const OutputJob& job) {
  if (job.kind.columns() > 0) return job.kind.columns();
  return job.kind.hidden != Hidden::kNone ? job.hidden : job.vocab;
}

uint64_t bytes_of_rows(const OutputJob& job) {
  return static_cast<uint64_t>(job.rows() * row_columns(job)) * sizeof(float);
}

int64_t BlockOwners::owner(uint64_t offset) const {
  const uint64_t block = offset / kBlockBytes * kBlockBytes;
  for (const uint64_t begin : {places_.first, places_.second}) {
    if (begin == 0 || block < begin || block - begin >= bytes_of_rows_) continue;
    const auto row = static_cast<int64_t>((block - begin) / row_bytes_);
    const auto next = std::upper_bound(first_rows_.begin(), first_rows_.end(), row);
    return std::max<int64_t>(0, next - first_rows_.begin() - 1);
  }
  return 0;
}

uint64_t RowPlaces::end() const { return std::max(places_.first, places_.second) + bytes_of_rows(job_); }

void RowPlaces::write_from_one_host() { mapping_ = map_for_writing(partial_.file(), end(), partial_.path()); }

void RowPlaces::write_from_several_hosts(std::vector<int64_t> first_rows) {
  owners_.emplace(std::move(first_rows), places_, static_cast<uint64_t>(row_columns(job_)) * sizeof(float),
                  bytes_of_rows(job_));
}

void RowPlaces::write(const ResultRows& rows) {
  const auto write = [&](uint64_t begin, auto values, int64_t columns) {
    write_bytes(begin + static_cast<uint64_t>(rows.first * columns) * sizeof(float), std::as_bytes(values));
  };
  if (!rows.logits.empty()) write(places_.first, rows.logits, row_columns(job_));
  if (rows.log_probs.empty()) return;
  write(places_.first, job_.kind.score ? rows.is_greedy : rows.top_ids, job_.kind.columns());
  write(places_.second, rows.log_probs, job_.kind.columns());
}

void RowPlaces::write_bytes(uint64_t offset, std::span<const std::byte> bytes) {
  if (owners_)
    write_owned(offset, bytes, true);
  else if (mapping_)
    mapping_.write(offset, bytes);
  else
    write_fully(partial_.file(), offset, bytes, partial_.path());
}

// Neighbouring blocks of one owner are written together.
void RowPlaces::write_owned(uint64_t offset, std::span<const std::byte> bytes, bool keep_others) {
  while (!bytes.empty()) {
    const int64_t owner = owners_->owner(offset);
    uint64_t end = (offset / BlockOwners::kBlockBytes + 1) * BlockOwners::kBlockBytes;
    while (end < offset + bytes.size() && owners_->owner(end) == owner) end += BlockOwners::kBlockBytes;
    const std::span<const std::byte> piece = bytes.first(std::min<uint64_t>(bytes.size(), end - offset));
    if (owner == job_.replica) {
      write_fully(partial_.file(), offset, piece, partial_.path());
    } else if (keep_others) {
      const SeamHead head{.offset = offset, .bytes = piece.size()};
      seams_.append(reinterpret_cast<const char*>(&head), sizeof head);
      seams_.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    }
    offset += piece.size();
    bytes = bytes.subspan(piece.size());
  }
}

std::string RowPlaces::pop_seams() { return std::exchange(seams_, {}); }

void RowPlaces::write_seams(std::string_view seams) {
  if (!owners_) return;
  while (!seams.empty()) {
    SeamHead head;
    expect(seams.size() >= sizeof head, "RowPlaces::write_seams: a seam is cut off");
    std::memcpy(&head, seams.data(), sizeof head);
    seams.remove_prefix(sizeof head);
    expect(seams.size() >= head.bytes, "RowPlaces::write_seams: a seam is cut off");
    write_owned(head.offset, std::as_bytes(std::span(seams.substr(0, head.bytes))), false);
    seams.remove_prefix(head.bytes);
  }
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
