// How all programs write to standard output and standard error.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "base/error.h"

namespace lfm2 {

// Writes a line to standard error. If that fails, the line is lost and the program continues to the exit that the line
// announces; the exit code still reports the cause.
inline void say(std::string line) noexcept {
  line += '\n';
  std::fputs(line.c_str(), stderr);
}

// Writes results to standard output and flushes. Error(kIo) if that fails.
inline void print_results(std::string_view text, std::FILE* to = stdout) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), to) < text.size() || std::fflush(to) != 0)
    throw Error(ExitCode::kIo, fmt::format("stdout cannot be written: {}", std::strerror(errno)));
}

// Occupies the file descriptors of standard streams that the caller closed, so that no file opened later gets one of
// these numbers. Reads and writes of such a stream then fail.
inline void hold_standard_streams() {
  for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(number, F_GETFD) < 0 && errno == EBADF)
      ::open("/dev/null", number == STDIN_FILENO ? O_WRONLY : O_RDONLY);  // gets the lowest free number: this one
}

}  // namespace lfm2
