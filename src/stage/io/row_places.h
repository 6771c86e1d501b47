// Writes rows of results into an unfinished .bin or .h5, at places that follow from their numbers. Used by the output
// files of scoring.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

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

// Calls write(offset, bytes) for each place in the file that `rows` fill.
void for_each_place(const OutputJob& job, const RowOffsets& places, const ResultRows& rows,
                    const std::function<void(uint64_t, std::span<const std::byte>)>& write);

class RowPlaces {
 public:
  RowPlaces(const PartialFile& partial, const OutputJob& job, const RowOffsets& places)
      : partial_(partial), job_(job), places_(places) {}

  const RowOffsets& places() const { return places_; }
  uint64_t end() const;  // the end of the last row, up to which the file must reach

  // Before the first write(), once the file has its size. Rows are written through a mapping, because pwrite lets only
  // one thread at a time write to a file. The disk space is reserved first, so that a full disk is an error here and
  // not a signal later. If the file system cannot reserve or map, rows are written by pwrite.
  void map();

  bool is_mapped() const { return static_cast<bool>(mapping_); }
  void write(const ResultRows& rows);  // of a mapped file; several threads may call it at once
  void read(int64_t first, int64_t count, ResultConsumer& consumer) const;

  void close() { mapping_ = {}; }

 private:
  const PartialFile& partial_;
  const OutputJob& job_;
  RowOffsets places_;
  FileMapping mapping_;
};

}  // namespace lfm2
