// Rows of results at the places that follow from their numbers, in a .bin or .h5 that is being made: who may write
// which bytes, and how. Used by the output files of scoring.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "stage/io/output_file.h"
#include "stage/io/partial_file.h"

namespace lfm2 {

// Byte offsets of the first row: of the logits, or of the ids and the log-probabilities (`second` is 0 where there is
// but one of them).
struct Places {
  uint64_t first = 0, second = 0;
};

int64_t row_columns(const OutputJob& job);
uint64_t bytes_of_rows(const OutputJob& job);  // of all rows, in one of the places

// Cuts a file into blocks, each with one writer. Hosts keep pages of a file in caches of their own: where two of them
// write into the same page, the one that writes its page back last wipes out the other's bytes. A block belongs to
// whoever writes its first byte: the writer of that row, or the first writer where it is no row.
class BlockOwners {
 public:
  static constexpr uint64_t kBlockBytes = uint64_t{1} << 16;  // a multiple of the page size of every machine

  // `first_rows` [writers]: ascending; writer w writes rows from first_rows[w] up to the next one's.
  BlockOwners(std::vector<int64_t> first_rows, const Places& places, uint64_t row_bytes, uint64_t bytes_of_rows)
      : first_rows_(std::move(first_rows)), places_(places), row_bytes_(row_bytes), bytes_of_rows_(bytes_of_rows) {}

  int64_t owner(uint64_t offset) const;  // of the block that holds this byte

 private:
  std::vector<int64_t> first_rows_;
  Places places_;
  uint64_t row_bytes_, bytes_of_rows_;
};

class RowPlaces {
 public:
  RowPlaces(const PartialFile& partial, const OutputJob& job, const Places& places)
      : partial_(partial), job_(job), places_(places) {}

  const Places& places() const { return places_; }
  uint64_t end() const;  // of the last place: the file has at least so many bytes

  // Before the first write(). One of the two:
  // All writers see one page cache. Rows go through a mapping of the file, for writing with pwrite is one thread at a
  // time for a file; its disk space is taken first, so that a full disk is an error here and not a signal later. Where
  // the file system cannot promise space, or map, rows are written with pwrite after all.
  void write_from_one_host();
  // The writers are on several hosts: each writes the blocks that are its own, and keeps what it has for the blocks of
  // others until take_seams().
  void write_from_several_hosts(std::vector<int64_t> first_rows);

  void write(const ResultRows& rows);
  void read(int64_t first, int64_t count, ResultConsumer& consumer) const;

  // What was written for blocks of other writers since the last call, and the other side of it: of the seams of all
  // writers, those in blocks of this one are written.
  std::string take_seams();
  void write_seams(std::string_view seams);

  void close() { mapping_ = {}; }

 private:
  void write_bytes(uint64_t offset, std::span<const std::byte> bytes);
  void write_owned(uint64_t offset, std::span<const std::byte> bytes, bool keep_others);

  const PartialFile& partial_;
  const OutputJob& job_;
  Places places_;
  FileMapping mapping_;
  std::optional<BlockOwners> owners_;
  std::string seams_;
};

}  // namespace lfm2
