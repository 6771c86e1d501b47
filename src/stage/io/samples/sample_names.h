// The names of samples as JSON text: "id" and "custom_id" of input lines, `ids` of .h5. Each needs eight bytes of
// memory. The texts are in memory while they are few, else in a temporary file.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stage/io/samples/temporary_range.h"

namespace lfm2 {

class SampleNames {
 public:
  SampleNames() = default;
  SampleNames(std::initializer_list<std::string_view> names) {
    for (const std::string_view name : names) push_back(name);
  }

  bool empty() const { return ends_.empty(); }  // no sample has a name
  size_t size() const { return ends_.size(); }
  // The name of a sample, "" if it has none.
  std::string_view operator[](size_t sample) const {
    const uint64_t begin = sample > 0 ? ends_[sample - 1] : 0;
    return {reinterpret_cast<const char*>(text_.data()) + begin, ends_[sample] - begin};
  }
  // Error(kUnavailable) if neither a temporary file nor memory can hold the names.
  void push_back(std::string_view name) {
    const uint64_t begin = ends_.empty() ? 0 : ends_.back(), end = begin + name.size();
    if (end > text_.capacity()) text_.grow(end);
    if (!name.empty()) std::memcpy(text_.data() + begin, name.data(), name.size());
    ends_.push_back(end);
  }
  // Adds the name, possibly "", of the next sample, number `sample`. Stores nothing until a sample has a name.
  void add(size_t sample, std::string_view name) {
    if (name.empty() && empty()) return;
    while (size() < sample) push_back("");
    push_back(name);
  }
  bool operator==(const SampleNames& other) const {
    return ends_ == other.ends_ && (empty() || std::memcmp(text_.data(), other.text_.data(), ends_.back()) == 0);
  }

  // For messages to other ranks, in pieces that are small compared with all names: a line for each of the next kPiece
  // names, and "" after the last name. JSON text has no line breaks.
  static constexpr size_t kPiece = size_t{1} << 16;
  std::string lines(size_t first) const {
    std::string lines;
    for (size_t sample = first; sample < std::min(first + kPiece, size()); ++sample) (lines += (*this)[sample]) += '\n';
    rest();
    return lines;
  }
  void add_lines(std::string_view lines) {
    for (size_t at = 0; at < lines.size();) {
      const size_t end = lines.find('\n', at);
      push_back(lines.substr(at, end - at));
      at = end + 1;
    }
  }

  void rest() const { text_.rest(); }  // see TemporaryRange

  void set_memory_limit(uint64_t bytes) { text_.set_memory_limit(bytes); }  // a test lowers it
  bool is_on_disk() const { return text_.is_on_disk(); }

 private:
  static constexpr uint64_t kMaxBytes = uint64_t{1} << 36;
  TemporaryRange text_{kMaxBytes, uint64_t{64} << 20, "names and errors of samples"};
  std::vector<uint64_t> ends_;
};

}  // namespace lfm2
