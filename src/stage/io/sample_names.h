// What samples are called, as JSON text: "id" and "custom_id" of input lines. Eight bytes and the text for each.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace lfm2 {

class SampleNames {
 public:
  SampleNames() = default;
  SampleNames(std::initializer_list<std::string_view> names) {
    for (const std::string_view name : names) push_back(name);
  }

  bool empty() const { return ends_.empty(); }  // no sample has a name
  size_t size() const { return ends_.size(); }
  // The name of a sample, "" where it has none.
  std::string_view operator[](size_t sample) const {
    const uint64_t begin = sample > 0 ? ends_[sample - 1] : 0;
    return std::string_view(text_).substr(begin, ends_[sample] - begin);
  }
  void push_back(std::string_view name) {
    text_ += name;
    ends_.push_back(text_.size());
  }
  void clear() { *this = SampleNames(); }
  bool operator==(const SampleNames&) const = default;

  // For messages to other ranks, which are to be small beside the names themselves: a line for each of the next kPiece
  // names, "" behind the last one. JSON text has no line break.
  static constexpr size_t kPiece = size_t{1} << 16;
  std::string lines(size_t first) const {
    std::string lines;
    for (size_t sample = first; sample < std::min(first + kPiece, size()); ++sample) (lines += (*this)[sample]) += '\n';
    return lines;
  }
  void add_lines(std::string_view lines) {
    for (size_t at = 0; at < lines.size();) {
      const size_t end = lines.find('\n', at);
      push_back(lines.substr(at, end - at));
      at = end + 1;
    }
  }

 private:
  std::string text_;
  std::vector<uint64_t> ends_;
};

}  // namespace lfm2
