// Reading regular files whose size is known and whose content is not trusted; and writing files that are whole or
// absent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>

namespace lfm2 {

class ThreadPool;

// Owns a file descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor();

  int get() const { return fd_; }
  int close();  // the result of close(2); for writers that must see its error

 private:
  int fd_ = -1;
};

// A regular file open for reading by position. Errors: kNoInput where it is missing, kData where it is no regular file
// or a read lies outside it, kIo where the system fails.
class CheckedFile {
 public:
  CheckedFile() = default;
  explicit CheckedFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  uint64_t size() const { return size_; }
  int descriptor() const { return fd_.get(); }
  void read(uint64_t offset, std::span<std::byte> into) const;  // exactly into.size() bytes

 private:
  std::filesystem::path path_;
  FileDescriptor fd_;
  uint64_t size_ = 0;
};

// All of `bytes` at `offset` of an open file. Error(kIo) names `path`.
void write_fully(const FileDescriptor& file, uint64_t offset, std::span<const std::byte> bytes,
                 const std::filesystem::path& path);

// A file as memory. Owns the mapping, not the file.
class FileMapping {
 public:
  FileMapping() = default;
  FileMapping(std::byte* data, uint64_t bytes) : data_(data), bytes_(bytes) {}
  FileMapping(FileMapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  FileMapping& operator=(FileMapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~FileMapping();

  explicit operator bool() const { return data_ != nullptr; }
  // In slices by `threads` where given: one thread fills memory that was never touched at a few GB/s.
  void write(uint64_t offset, std::span<const std::byte> bytes, ThreadPool* threads) const;

 private:
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};
// The first `bytes` of a file that is open for writing, their disk space taken. Empty where the file system does not
// promise space or does not map; Error(kIo) where there is no space.
FileMapping map_for_writing(const FileDescriptor& file, uint64_t bytes, const std::filesystem::path& path);

// The whole of a small text file; kData above `limit_bytes`.
std::string read_text_file(const std::filesystem::path& path, uint64_t limit_bytes);

// A file that is being made: it has a temporary name beside its own until commit(). Dropped without commit it is
// removed.
class PendingPath {
 public:
  PendingPath() = default;
  explicit PendingPath(std::filesystem::path path);  // creates nothing
  PendingPath(std::filesystem::path path, std::filesystem::path temporary);
  PendingPath(PendingPath&& other) noexcept
      : path_(std::move(other.path_)), temporary_(std::exchange(other.temporary_, {})) {}
  PendingPath& operator=(PendingPath&& other) noexcept {
    path_.swap(other.path_);
    temporary_.swap(other.temporary_);
    return *this;
  }
  ~PendingPath();

  const std::filesystem::path& path() const { return path_; }
  const std::filesystem::path& temporary_path() const { return temporary_; }
  void commit();  // fsync, rename, fsync of the folder; Error(kIo)

 private:
  std::filesystem::path path_, temporary_;  // temporary_ is empty once there is nothing to remove
};

// A PendingPath with its bytes written here. Errors: kCantCreate on opening, kIo after.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path) : AtomicFile(PendingPath(std::move(path))) {}
  explicit AtomicFile(PendingPath pending);

  const std::filesystem::path& path() const { return pending_.path(); }
  const std::filesystem::path& temporary_path() const { return pending_.temporary_path(); }
  void write(std::span<const std::byte> bytes);                      // at the end
  void write_at(uint64_t offset, std::span<const std::byte> bytes);  // anywhere
  void reserve(uint64_t bytes);  // disk space for that many; nothing where the file system cannot
  void start_writeback(uint64_t offset, uint64_t bytes);  // sends what was written there to the disk, without waiting
  void sync();
  void commit();

 private:
  PendingPath pending_;
  FileDescriptor fd_;
  uint64_t end_ = 0;
};

// A name beside `path`, under which it is written until it is whole; no file has it.
std::filesystem::path temporary_name(const std::filesystem::path& path);
// A new or emptied file, for reading too, through no link; Error(kCantCreate).
FileDescriptor create_file(const std::filesystem::path& path);
// An existing file, for reading too; Error(kIo).
FileDescriptor open_for_writing(const std::filesystem::path& path);
// fsync of a file or folder by name; Error(kIo).
void sync_path(const std::filesystem::path& path);
// rename, then fsync of the folder; Error(kIo).
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

// a * b and a + b; Error(kData) naming `what` where they overflow.
uint64_t checked_multiply(uint64_t a, uint64_t b, const std::string& what);
uint64_t checked_add(uint64_t a, uint64_t b, const std::string& what);

}  // namespace lfm2
