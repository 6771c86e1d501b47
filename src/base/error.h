// The one exception type of the project and the exit codes that it carries. Thrown everywhere, caught once in each
// main.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace lfm2 {

// The values of sysexits.h where it has one. They are part of the command line's contract (docs/formats.md, "Exit
// codes").
enum class ExitCode : int {
  kOk = 0,
  kInvalid = 1,       // --reference: the results differ
  kUsage = 64,        // wrong options
  kData = 65,         // bad input or weights
  kNoInput = 66,      // a named file does not exist
  kUnavailable = 69,  // no GPU, too few or too many ranks, not enough memory
  kSoftware = 70,     // a bug, or a fault of the GPU
  kCantCreate = 73,   // output cannot be created
  kIo = 74,           // reading or writing failed
  kStopped = 75,      // stopped on request; --resume continues
  kLost = 76,         // a rank, GPU or connection was lost or timed out
};

// The number of bytes of the UTF-8 character that begins `text`; 0 if the character is invalid or unfit for a terminal.
inline size_t printable_bytes(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const unsigned first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  unsigned code = first & (0xffu >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3fu);
  }
  // The smallest code of 2, 3 and 4 bytes; the codes below 0xa0 are control characters.
  constexpr unsigned kSmallest[] = {0, 0, 0xa0, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  return first >= 0xc2 && first < 0xf5 && code >= kSmallest[length] && code < 0x110000 && !surrogate ? length : 0;
}

// The text as one line of printable UTF-8. Other bytes become \xNN, and long text is truncated.
inline std::string printable(std::string_view text) {
  constexpr size_t kMaxLineBytes = 4096;
  std::string line;
  while (!text.empty() && line.size() < kMaxLineBytes) {
    const size_t bytes = printable_bytes(text);
    if (bytes == 0)
      line += fmt::format("\\x{:02x}", static_cast<unsigned char>(text.front()));
    else
      line += text.substr(0, bytes);
    text.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  return text.empty() ? line : line + "…";
}

class Error : public std::runtime_error {
 public:
  // The place comes from the caller's builtins, because clang 14 with Debian 12's library lacks std::source_location.
  Error(ExitCode code, const std::string& message, const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : std::runtime_error(printable(message)), code_(code), file_(file), line_(line) {}

  ExitCode code() const { return code_; }
  // Where it was thrown, as "file.cpp:42". Shown with --verbose, and for kSoftware, where the place is what matters.
  std::string where() const {
    const std::string path = file_;
    return fmt::format("{}:{}", path.substr(path.find_last_of('/') + 1), line_);
  }

 private:
  ExitCode code_;
  const char* file_;
  int line_;
};

// Checks a condition that only a bug can break. Error(kSoftware).
inline void expect(bool condition, const char* message, const char* file = __builtin_FILE(),
                   int line = __builtin_LINE()) {
  if (!condition) throw Error(ExitCode::kSoftware, message, file, line);
}

}  // namespace lfm2
