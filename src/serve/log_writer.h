// Writes log lines on a separate thread, so that callers never wait for a slow pipe or disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace lfm2::serve {

// JSON text with those characters escaped that a terminal may interpret: DEL, C1, line breaks of Unicode and changes of
// direction. (JSON itself escapes the other control characters.)
std::string without_controls(const std::string& json);

class LogWriter {
 public:
  // Buffers at most `max_bytes`. The descriptor must stay open.
  explicit LogWriter(int descriptor, size_t max_bytes = size_t{4} << 20);
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;
  ~LogWriter();  // writes the buffered lines, for a second at most

  // Writes a line, given without its line end. If the buffer is full, the line is dropped, and a note precedes the next
  // line.
  void write(std::string_view line);
  uint64_t dropped() const;  // lines, since the start

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lfm2::serve
