// Which bytes of an input line are its text, the same for every program that reads lines.
#pragma once

#include <string_view>

namespace lfm2 {

// Removes a final \r from a line that is given without its \n and, from a file's first line, the byte order mark.
inline std::string_view text_of_line(std::string_view line, bool is_first) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (is_first && line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

}  // namespace lfm2
