// What the targets share: files for the parsers that take files, and what a parser may throw.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <ios>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

#include "base/checked_file.h"
#include "base/error.h"

namespace lfm2::fuzz {

namespace fs = std::filesystem;
using Bytes = std::span<const std::byte>;

// Each process writes each input into a folder of its own, in memory where there is /dev/shm.
class Folder {
 public:
  Folder() {
    std::error_code error;
    const fs::path in_memory = "/dev/shm";
    std::string name =
        ((fs::is_directory(in_memory, error) ? in_memory : fs::temp_directory_path()) / "lfm2-fuzz-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  fs::path write(const std::string& name, Bytes bytes) const {
    const fs::path path = path_ / name;
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    if (!file.flush().good()) std::abort();
    return path;
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

inline Bytes bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// The tokenizer of the corpus.
inline std::string small_tokenizer() {
  return read_text_file(fs::path(LFM2_FUZZ_CORPUS_DIR) / "tokenizer_json/small", 1 << 20);
}

// A parser may end early only by throwing an Error with kData or the code `also`.
template <class F>
void expect_only_errors(F&& parse, ExitCode also = ExitCode::kData) {
  try {
    parse();
  } catch (const Error& error) {
    const std::string message = error.what();
    const bool right_code =
        error.code() == ExitCode::kData || error.code() == ExitCode::kNoInput || error.code() == also;
    const bool one_line = printable(message) == message || message.ends_with("…");
    if (right_code && one_line && !message.empty() && message.size() < 5000) return;
    fmt::print(stderr, "exit code {}: {} ({})\n", static_cast<int>(error.code()), message, error.where());
    std::abort();
  }
}

}  // namespace lfm2::fuzz
