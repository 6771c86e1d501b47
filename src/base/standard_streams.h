// What goes to standard output and standard error, by all programs.
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

// A line to standard error. Where that cannot be written the line is lost: a message must not keep anybody from doing
// what it tells of, and its exit code says the rest.
inline void say(std::string line) noexcept {
  line += '\n';
  std::fputs(line.c_str(), stderr);
}

// Results to standard output, at once. Error(kIo) where it cannot be written.
inline void print_results(std::string_view text, std::FILE* to = stdout) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), to) < text.size() || std::fflush(to) != 0)
    throw Error(ExitCode::kIo, fmt::format("stdout cannot be written: {}", std::strerror(errno)));
}

// Files that are opened later must not take the numbers of standard streams that were closed: what is read from or
// written to such a stream fails instead.
inline void hold_standard_streams() {
  for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(number, F_GETFD) < 0 && errno == EBADF)
      ::open("/dev/null", number == STDIN_FILENO ? O_WRONLY : O_RDONLY);  // the lowest free number, so this one
}

}  // namespace lfm2
