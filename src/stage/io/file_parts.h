// Where the finished samples are in a partial file: the part of its journal's records that is kept in memory.
#pragma once

#include <cstdint>
#include <deque>

#include "stage/io/journal.h"

namespace lfm2 {

// There may be one for each sample.
struct FilePart {
  int64_t first = 0;               // sample
  uint64_t offset = 0, bytes = 0;  // see JournalRecord
};

class FileParts {
 public:
  // With `joins`, parts that are adjacent in samples and in the file become one. For outputs that never look up a
  // single sample.
  explicit FileParts(bool joins) : joins_(joins) {}

  void clear();
  void add(const JournalRecord& record);
  uint64_t reserve(uint64_t bytes);  // the offset of a place at the end

  bool empty() const { return parts_.empty(); }
  uint64_t end() const { return end_; }
  const std::deque<FilePart>& order();  // sorts them by sample, for this call and all later ones
  bool is_ordered();                    // whether the file has them in that order and without gaps

 private:
  bool joins_;
  std::deque<FilePart> parts_;
  uint64_t end_ = 0;         // of the places that were reserved or are in parts
  int64_t next_sample_ = 0;  // the sample after the last part, until order() is called
};

}  // namespace lfm2
