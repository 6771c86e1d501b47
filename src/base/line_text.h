// What of a line is text, the same for every program that reads lines.
#pragma once

#include <string_view>

namespace lfm2 {

// A line, given without its \n, also without the \r before that and, where it is a file's first one, without a byte
// order mark.
inline std::string_view text_of_line(std::string_view line, bool is_first) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (is_first && line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

}  // namespace lfm2
