#include "stage/io/file_parts.h"

#include <algorithm>
#include <utility>

namespace lfm2 {

void FileParts::clear() {
  parts_.clear();
  end_ = 0;
}

void FileParts::add(const JournalRecord& record) {
  FilePart* last = parts_.empty() ? nullptr : &parts_.back();
  if (last != nullptr && joins_ && next_sample_ == record.first && last->offset + last->bytes == record.offset)
    last->bytes += record.bytes;
  else
    parts_.push_back({.first = record.first, .offset = record.offset, .bytes = record.bytes});
  next_sample_ = record.first + record.count;
  end_ = std::max(end_, record.offset + record.bytes);
}

uint64_t FileParts::reserve(uint64_t bytes) { return std::exchange(end_, end_ + bytes); }

const std::deque<FilePart>& FileParts::order() {
  std::sort(parts_.begin(), parts_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return parts_;
}

bool FileParts::is_ordered() {
  uint64_t next = 0;
  for (const FilePart& part : order()) {
    if (part.offset != next) return false;
    next += part.bytes;
  }
  return next == end_;
}

}  // namespace lfm2
