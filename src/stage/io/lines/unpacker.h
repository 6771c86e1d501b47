// Unpacks gzip and Zstandard streams with bounded memory.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace lfm2 {

class Unpacker {
 public:
  // Reads at least one packed byte into the span; returns 0 at the end.
  using Read = std::function<size_t(std::span<char>)>;

  virtual ~Unpacker() = default;

  // Unpacks at least one byte into the span; returns 0 at the end. Error(kData) for damaged, truncated or otherwise
  // packed input.
  size_t unpack(std::span<char> into);

 protected:
  Unpacker(std::string name, Read read);
  // Throws an Error that names the file.
  [[noreturn]] void refuse(const char* reason) const;
  // Advances both spans past the bytes read and written. Returns true at the end of a gzip member or Zstandard frame,
  // which another one may follow.
  virtual bool step(std::span<const char>& packed, std::span<char>& into) = 0;

 private:
  std::string name_;  // file and format, for messages
  Read read_;
  std::vector<char> buffer_;
  std::span<const char> packed_;  // the rest of buffer_
  bool is_whole_ = false;
};

// The unpacker for a name that ends in .gz or .zst; null for all others.
std::unique_ptr<Unpacker> make_unpacker(const std::filesystem::path& path, Unpacker::Read read);

}  // namespace lfm2
