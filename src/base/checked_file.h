// Reading of regular files whose size is known and whose content is not trusted, and writing of files that are either
// whole or absent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>

namespace lfm2 {

enum class ExitCode : int;

// From now on a file that grows beyond RLIMIT_FSIZE fails with EFBIG, where the system would end the process.
void ignore_file_size_signal();

// Throws the Error for a failed system call on `path`, with the text of `error`, an errno.
[[noreturn]] void throw_failed_call(ExitCode code, const char* call, const std::filesystem::path& path, int error);

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
  int close();  // returns the result of close(2), for writers that must see its error

 private:
  int fd_ = -1;
};

// A regular file, open for reading by position. Errors: kNoInput where it is missing, kData where it is no regular file
// or a read lies outside it, kIo where the system fails.
class CheckedFile {
 public:
  CheckedFile() = default;
  explicit CheckedFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  uint64_t size() const { return size_; }
  int descriptor() const { return fd_.get(); }
  void read(uint64_t offset, std::span<std::byte> into) const;  // reads exactly into.size() bytes
  [[noreturn]] void refuse(const std::string& message) const;   // Error(kData) that names the file

 private:
  std::filesystem::path path_;
  FileDescriptor fd_;
  uint64_t size_ = 0;
};

// Reads from `offset` on until `into` is full or the file ends, and returns the number of bytes. Error(kIo) names
// `path`.
size_t read_up_to(const FileDescriptor& file, uint64_t offset, std::span<std::byte> into,
                  const std::filesystem::path& path);
// Writes all of `bytes` at `offset`. Error(kIo) names `path`.
void write_fully(const FileDescriptor& file, uint64_t offset, std::span<const std::byte> bytes,
                 const std::filesystem::path& path);

// Copies what `from` holds into `to`, which is empty; holes stay holes. Both are called `path` in an Error(kIo).
void copy_data(const FileDescriptor& from, const FileDescriptor& to, const std::filesystem::path& path);

// A file mapped into memory. Owns the mapping, not the file.
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
  // Several threads may write at once, because filling fresh pages limits a single thread.
  void write(uint64_t offset, std::span<const std::byte> bytes) const;

 private:
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};
// Maps the first `bytes` of a file that is open for writing, and takes their disk space. Returns an empty mapping where
// the file system cannot promise space or cannot map; Error(kIo) where there is no space.
FileMapping map_for_writing(const FileDescriptor& file, uint64_t bytes, const std::filesystem::path& path);

// Reads a small text file as a whole. Error(kData) where it is larger than `limit_bytes`.
std::string read_text_file(const std::filesystem::path& path, uint64_t limit_bytes);

// The name of a file that is being made: a temporary name beside its own, until commit(). Destroyed without commit(),
// it removes the file.
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
  std::filesystem::path path_, temporary_;  // temporary_ is empty where nothing is to be removed
};

// Writes a file under a PendingPath. Errors: kCantCreate in the constructor, kIo later.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path) : AtomicFile(PendingPath(std::move(path))) {}
  explicit AtomicFile(PendingPath pending);

  const std::filesystem::path& path() const { return pending_.path(); }
  const std::filesystem::path& temporary_path() const { return pending_.temporary_path(); }
  void write(std::span<const std::byte> bytes);                      // appends
  void write_at(uint64_t offset, std::span<const std::byte> bytes);  // writes at any place
  // Takes disk space for `bytes` bytes; does nothing where the file system cannot.
  void reserve(uint64_t bytes);
  // Begins to write this range to the disk, without waiting.
  void start_writeback(uint64_t offset, uint64_t bytes);
  void sync();
  void commit();

 private:
  PendingPath pending_;
  FileDescriptor fd_;
  uint64_t end_ = 0;
};

// Refuses names of folders, and of devices and pipes: a finished file takes its place by renaming, which would remove
// them. Error(kCantCreate).
void expect_name_of_file(const std::filesystem::path& path);
// Whether nothing has this name. False where nobody can tell.
bool is_free(const std::filesystem::path& path);
// A free name beside `path`, for a file that is not whole yet.
std::filesystem::path temporary_name(const std::filesystem::path& path);
// Creates or empties a file, for reading and writing; follows no link. Error(kCantCreate).
FileDescriptor create_file(const std::filesystem::path& path);
// Opens an existing file for reading and writing. Error(kIo).
FileDescriptor open_for_writing(const std::filesystem::path& path);
// fsync and fdatasync of an open file. Error(kIo) names `path`.
void sync_file(const FileDescriptor& file, const std::filesystem::path& path);
void sync_data(const FileDescriptor& file, const std::filesystem::path& path);
// fsync of a file or folder by name; Error(kIo).
void sync_path(const std::filesystem::path& path);
// rename, then fsync of the folder; Error(kIo).
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

// a * b and a + b. Error(kData) naming `what` where they exceed 64 bits.
uint64_t checked_multiply(uint64_t a, uint64_t b, const std::string& what);
uint64_t checked_add(uint64_t a, uint64_t b, const std::string& what);

}  // namespace lfm2
