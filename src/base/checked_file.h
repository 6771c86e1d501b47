// Reads regular files with untrusted content, and writes files that are either whole or absent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>

namespace lfm2 {

enum class ExitCode : int;

// Ignores SIGXFSZ: from now on a write beyond RLIMIT_FSIZE fails with EFBIG instead of ending the process.
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

// A regular file, open for reading by position. Errors: kNoInput if it is missing, kData if it is no regular file or a
// read lies outside it, kIo if the system fails.
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

// Copies the content of `from` into the empty file `to`; holes stay holes. Error(kIo) names `path` for both.
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
// Maps the first `bytes` of a file that is open for writing, and reserves their disk space. Returns an empty mapping if
// the file system cannot reserve space or cannot map. Error(kIo) if the disk is full.
FileMapping map_for_writing(const FileDescriptor& file, uint64_t bytes, const std::filesystem::path& path);

// Reads a small text file as a whole. Error(kData) where it is larger than `limit_bytes`.
std::string read_text_file(const std::filesystem::path& path, uint64_t limit_bytes);

// The name of a file that is being written: a temporary name beside the final one, until commit(). The destructor
// removes the file if commit() was not called.
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
  std::filesystem::path path_, temporary_;  // temporary_ is empty if nothing is to be removed
};

// Writes a file under a PendingPath. Errors: kCantCreate from the constructor, kIo from all other functions.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path) : AtomicFile(PendingPath(std::move(path))) {}
  explicit AtomicFile(PendingPath pending);

  const std::filesystem::path& path() const { return pending_.path(); }
  const std::filesystem::path& temporary_path() const { return pending_.temporary_path(); }
  void write(std::span<const std::byte> bytes);                      // appends
  void write_at(uint64_t offset, std::span<const std::byte> bytes);  // writes at an offset
  // Reserves disk space for `bytes` bytes; does nothing if the file system cannot.
  void reserve(uint64_t bytes);
  // Starts to write this range to the disk, without waiting.
  void start_writeback(uint64_t offset, uint64_t bytes);
  void sync();
  void commit();

 private:
  PendingPath pending_;
  FileDescriptor fd_;
  uint64_t end_ = 0;
};

// Refuses names of folders, devices and pipes, because renaming a finished file to such a name would remove them.
// Error(kCantCreate).
void expect_name_of_file(const std::filesystem::path& path);
// Whether nothing has this name. False if the file system cannot tell.
bool is_free(const std::filesystem::path& path);
// A free name beside `path`, for an unfinished file.
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

// Return a * b and a + b. Error(kData) naming `what` if the result exceeds 64 bits.
uint64_t checked_multiply(uint64_t a, uint64_t b, const std::string& what);
uint64_t checked_add(uint64_t a, uint64_t b, const std::string& what);

}  // namespace lfm2
