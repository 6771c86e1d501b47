// Finds the first of several stop texts in a text whose bytes arrive token by token.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lfm2 {

class StopText {
 public:
  // The stop texts must not be empty.
  explicit StopText(std::vector<std::string> stops);

  // Adds the next bytes. If a stop text ends in them, returns the number of all bytes before the first such stop text.
  // With `may_stop` false, stop texts that end in these bytes do not count.
  std::optional<int64_t> feed(std::string_view bytes, bool may_stop = true);
  // The number of bytes that surely belong to the text; the rest may be the beginning of a stop text.
  int64_t settled() const;

 private:
  std::vector<std::string> stops_;
  size_t longest_ = 0;  // bytes of the longest stop text
  std::string tail_;    // the last bytes: fewer than longest_
  int64_t taken_ = 0;   // number of all bytes so far
};

}  // namespace lfm2
