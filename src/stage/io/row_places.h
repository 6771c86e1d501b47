// Writes rows of results into an unfinished .bin or .h5, at places that follow from their numbers, and decides which
// writer may write which bytes. Used by the output files of scoring.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "stage/io/output_file.h"
#include "stage/io/partial_file.h"

namespace lfm2 {

// Byte offsets of row 0. `first`: of the logits, hidden states, ids or top-1 marks; `second`: of the log-probabilities,
// or 0 if there are none.
struct RowOffsets {
  uint64_t first = 0, second = 0;
};

int64_t row_columns(const OutputJob& job);
uint64_t bytes_of_rows(const OutputJob& job);  // bytes of all rows at one of the places

// Cuts a file into blocks, each with one writer. Each host caches pages of the file. If two hosts write into one page,
// the later write-back overwrites the other host's bytes. A block belongs to the writer of the row that contains the
// block's first byte, or to the first writer if no row does.
class BlockOwners {
 public:
  static constexpr uint64_t kBlockBytes = uint64_t{1} << 16;  // a multiple of the page size of every machine

  // `first_rows` [writers], ascending: writer w writes the rows from first_rows[w] up to first_rows[w + 1].
  BlockOwners(std::vector<int64_t> first_rows, const RowOffsets& places, uint64_t row_bytes, uint64_t bytes_of_rows)
      : first_rows_(std::move(first_rows)), places_(places), row_bytes_(row_bytes), bytes_of_rows_(bytes_of_rows) {}

  int64_t owner(uint64_t offset) const;  // the writer that owns the block of this byte

 private:
  std::vector<int64_t> first_rows_;
  RowOffsets places_;
  uint64_t row_bytes_, bytes_of_rows_;
};

class RowPlaces {
 public:
  RowPlaces(const PartialFile& partial, const OutputJob& job, const RowOffsets& places)
      : partial_(partial), job_(job), places_(places) {}

  const RowOffsets& places() const { return places_; }
  uint64_t end() const;  // the end of the last row, up to which the file must reach

  // One of the next two is called before the first write(). On one host all writers see one page cache. Rows are
  // written through a mapping, because pwrite lets only one thread at a time write to a file. The disk space is
  // reserved first, so that a full disk is an error here and not a signal later. If the file system cannot reserve or
  // map, rows are written by pwrite.
  void write_from_one_host();
  // On several hosts each writer writes the blocks that it owns. A seam is a run of bytes in a block of another writer;
  // seams are kept until pop_seams().
  void write_from_several_hosts(std::vector<int64_t> first_rows);

  bool is_mapped() const { return static_cast<bool>(mapping_); }
  void write(const ResultRows& rows);  // of a mapped file; several threads may call it at once
  void read(int64_t first, int64_t count, ResultConsumer& consumer) const;

  // pop_seams() returns this writer's seams since the last call. write_seams() gets the seams of all writers, and
  // writes those in this writer's blocks.
  std::string pop_seams();
  void write_seams(std::string_view seams);

  void close() { mapping_ = {}; }

 private:
  void write_bytes(uint64_t offset, std::span<const std::byte> bytes);
  void write_owned(uint64_t offset, std::span<const std::byte> bytes, bool keep_others);

  const PartialFile& partial_;
  const OutputJob& job_;
  RowOffsets places_;
  FileMapping mapping_;
  std::optional<BlockOwners> owners_;
  std::string seams_;
};

}  // namespace lfm2
