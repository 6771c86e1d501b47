// Finds where a text ends that is to end before the first of some stop texts. The bytes of the text come token by
// token.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lfm2 {

class StopText {
 public:
  // None of the stop texts is empty.
  explicit StopText(std::vector<std::string> stops);

  // Takes the next bytes. Where a stop text ends among them: the number of all bytes before it, or before the first of
  // several. Stop texts that end in bytes that may not stop do not count.
  std::optional<int64_t> feed(std::string_view bytes, bool may_stop = true);
  // The number of bytes that belong to the text whatever follows: the rest may be the beginning of a stop text.
  int64_t settled() const;

 private:
  std::vector<std::string> stops_;
  size_t longest_ = 0;  // bytes of the longest stop text
  std::string tail_;    // the last bytes: fewer than longest_
  int64_t taken_ = 0;   // number of all bytes
};

}  // namespace lfm2
