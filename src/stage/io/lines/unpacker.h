// Unpacks gzip and Zstandard while they are read, with bounded memory.
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
  // Reads packed bytes into the span, one or more; 0 at the end.
  using Read = std::function<size_t(std::span<char>)>;

  virtual ~Unpacker() = default;

  // Some of the content, one byte or more; 0 at the end. Error(kData) for what is damaged, cut off or packed in another
  // way.
  size_t unpack(std::span<char> into);

 protected:
  Unpacker(std::string name, Read read);
  // Throws an Error that names the file.
  [[noreturn]] void refuse(const char* reason) const;
  // Moves both spans past what it has read and written. True where nothing is open: at the end of a gzip member or a
  // Zstandard frame, which another one may follow.
  virtual bool step(std::span<const char>& packed, std::span<char>& into) = 0;

 private:
  std::string name_;  // of the file and its form, for messages
  Read read_;
  std::vector<char> buffer_;
  std::span<const char> packed_;  // of buffer_, still to be unpacked
  bool is_whole_ = false;
};

// For a name that ends in .gz or .zst; null for all others.
std::unique_ptr<Unpacker> make_unpacker(const std::filesystem::path& path, Unpacker::Read read);

}  // namespace lfm2
