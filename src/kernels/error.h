// The one exception type of the project and the exit codes it carries. Thrown everywhere, caught once in each main.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace lfm2 {

// sysexits.h where it has a name for it; the table is part of the command line's contract (README, "Exit codes").
enum class ExitCode : int {
  kOk = 0,
  kInvalid = 1,       // --answers: the results differ
  kUsage = 64,        // wrong options
  kData = 65,         // bad input or weights
  kNoInput = 66,      // a file that was named does not exist
  kUnavailable = 69,  // no GPU, too few or too many ranks, not enough memory
  kSoftware = 70,     // a bug, or a fault of the GPU
  kCantCreate = 73,   // output cannot be created
  kIo = 74,           // reading or writing failed
  kStopped = 75,      // stopped on request, resumable
  kLost = 76,         // a rank, GPU or connection lost or timed out
};

// One line for a terminal, whatever a file's content brought into it: control characters as \xNN, and an end.
inline std::string printable(const std::string& text) {
  constexpr size_t kLongest = 4096;
  std::string line;
  for (size_t i = 0; i < text.size() && line.size() < kLongest; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0u;
    const bool c1 = byte == 0xc2 && next >= 0x80 && next < 0xa0;  // the control characters of Latin-1, in UTF-8
    if (byte < 0x20 || byte == 0x7f || c1)
      line += fmt::format("\\x{:02x}", c1 ? static_cast<unsigned char>(text[++i]) : byte);
    else
      line += text[i];
  }
  return line.size() < kLongest ? line : line + "…";
}

class Error : public std::runtime_error {
 public:
  // The place is the caller's: std::source_location is missing in clang 14 with Debian 12's library.
  Error(ExitCode code, const std::string& message, const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : std::runtime_error(printable(message)), code_(code), file_(file), line_(line) {}

  ExitCode code() const { return code_; }
  // Where it was thrown, "file.cpp:42": shown with --verbose and for kSoftware, where the place is the message.
  std::string where() const {
    const std::string path = file_;
    return fmt::format("{}:{}", path.substr(path.find_last_of('/') + 1), line_);
  }

 private:
  ExitCode code_;
  const char* file_;
  int line_;
};

// A condition that only a bug can break.
inline void expect(bool condition, const char* message, const char* file = __builtin_FILE(),
                   int line = __builtin_LINE()) {
  if (!condition) throw Error(ExitCode::kSoftware, message, file, line);
}

}  // namespace lfm2
