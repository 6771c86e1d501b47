// Server-sent events: the form of a stream with the content type text/event-stream.
#pragma once

#include <string>
#include <string_view>

namespace lfm2::http {

inline constexpr std::string_view kEventStream = "text/event-stream; charset=utf-8";

// One event, with a name unless it is "". Each line of the data becomes a separate data line, since a line break would
// end the event.
inline std::string event_text(std::string_view data, std::string_view name = {}) {
  std::string text;
  if (!name.empty()) text.append("event: ").append(name) += '\n';
  text += "data: ";
  for (size_t i = 0; i < data.size(); ++i) {
    if (data[i] == '\r' && i + 1 < data.size() && data[i + 1] == '\n') continue;
    if (data[i] == '\n' || data[i] == '\r')
      text += "\ndata: ";
    else
      text += data[i];
  }
  return text += "\n\n";
}

}  // namespace lfm2::http
