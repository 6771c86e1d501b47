// Writes lines on a separate thread, so that whoever logs never waits for the reader of a pipe or for a disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

namespace lfm2::serve {

class LogWriter {
 public:
  // Holds back at most `max_bytes`. The descriptor must outlive the process's use of it.
  explicit LogWriter(int descriptor, size_t max_bytes = size_t{4} << 20);
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;
  ~LogWriter();  // writes what is left, for a second at most

  // A line without its end. Where too many bytes wait it is dropped, and the log says so before its next line.
  void write(std::string_view line);
  uint64_t dropped() const;  // lines, since the start

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lfm2::serve
