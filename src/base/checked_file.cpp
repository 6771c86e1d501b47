// Positioned reads with bounds, and writing of files under a temporary name.
#include "base/checked_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "base/error.h"

namespace lfm2 {

namespace {

constexpr size_t kMaxTransfer = size_t{1} << 30;  // one read(2) or write(2) moves at most 2 GiB - 4 KiB

// Whole cache lines are written with non-temporal stores. Ordinary stores would first fetch each line from memory,
// which doubles the traffic.
void copy_past_caches(std::byte* to, const std::byte* from, size_t bytes) {
#if defined(__SSE2__)
  constexpr size_t kLine = 64;
  const size_t head = std::min(bytes, (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine);
  std::memcpy(to, from, head);
  size_t done = head;
  const bool has_lines = done + kLine <= bytes;
  for (; done + kLine <= bytes; done += kLine) {
    const auto* source = reinterpret_cast<const __m128i*>(from + done);
    auto* target = reinterpret_cast<__m128i*>(to + done);
    const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1), c = _mm_loadu_si128(source + 2),
                  d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  if (has_lines) _mm_sfence();  // non-temporal stores are not ordered with others
  std::memcpy(to + done, from + done, bytes - done);
#else
  std::memcpy(to, from, bytes);
#endif
}

}  // namespace

void ignore_file_size_signal() { std::signal(SIGXFSZ, SIG_IGN); }

void throw_failed_call(ExitCode code, const char* call, const std::filesystem::path& path, int error) {
  throw Error(code, fmt::format("{}: {} failed: {}{}", path.string(), call, std::strerror(error),
                                error == EFBIG ? " (see ulimit -f)" : ""));
}

FileDescriptor::~FileDescriptor() { close(); }

int FileDescriptor::close() {
  const int fd = std::exchange(fd_, -1);
  return fd >= 0 ? ::close(fd) : 0;
}

// O_NONBLOCK because opening a named pipe would otherwise wait until someone writes to it.
CheckedFile::CheckedFile(std::filesystem::path path)
    : path_(std::move(path)), fd_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (fd_.get() < 0)
    throw_failed_call(errno == ENOENT || errno == ENOTDIR ? ExitCode::kNoInput : ExitCode::kIo, "open", path_, errno);
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) throw_failed_call(ExitCode::kIo, "fstat", path_, errno);
  if (!S_ISREG(status.st_mode)) throw Error(ExitCode::kData, fmt::format("{}: not a regular file", path_.string()));
  size_ = static_cast<uint64_t>(status.st_size);
}

void CheckedFile::refuse(const std::string& message) const {
  throw Error(ExitCode::kData, fmt::format("{}: {}", path_.string(), message));
}

void CheckedFile::read(uint64_t offset, std::span<std::byte> into) const {
  if (offset > size_ || into.size() > size_ - offset)
    throw Error(ExitCode::kData, fmt::format("{}: {} bytes expected at offset {}, but the file has {} bytes",
                                             path_.string(), into.size(), offset, size_));
  if (read_up_to(fd_, offset, into, path_) < into.size())
    throw Error(ExitCode::kData, fmt::format("{}: shrank while it was read", path_.string()));
}

std::string read_text_file(const std::filesystem::path& path, uint64_t limit_bytes) {
  const CheckedFile file(path);
  if (file.size() > limit_bytes)
    throw Error(ExitCode::kData,
                fmt::format("{}: {} bytes, expected at most {}", path.string(), file.size(), limit_bytes));
  std::string text(file.size(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

std::filesystem::path temporary_name(const std::filesystem::path& path) {
  const std::string name = path.string() + fmt::format(".tmp.{}", ::getpid());
  std::string free = name;
  struct stat status {};
  for (int n = 1; ::lstat(free.c_str(), &status) == 0; ++n) free = fmt::format("{}.{}", name, n);
  return free;
}

void expect_name_of_file(const std::filesystem::path& path) {
  std::error_code unknown;  // a path that stat() cannot examine cannot be created either
  const std::filesystem::file_status there = std::filesystem::status(path, unknown);
  if (std::filesystem::is_directory(there))
    throw Error(ExitCode::kCantCreate, fmt::format("{}: is a folder, expected the name of a file", path.string()));
  if (std::filesystem::exists(there) && !std::filesystem::is_regular_file(there))
    throw Error(ExitCode::kCantCreate,
                fmt::format("{}: not a regular file, which is what it would become", path.string()));
}

bool is_free(const std::filesystem::path& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) != 0 && errno == ENOENT;
}

PendingPath::PendingPath(std::filesystem::path path) : path_(std::move(path)), temporary_(temporary_name(path_)) {}

PendingPath::PendingPath(std::filesystem::path path, std::filesystem::path temporary)
    : path_(std::move(path)), temporary_(std::move(temporary)) {}

PendingPath::~PendingPath() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void PendingPath::commit() {
  sync_path(temporary_);
  rename_durably(temporary_, path_);
  temporary_.clear();
}

size_t read_up_to(const FileDescriptor& file, uint64_t offset, std::span<std::byte> into,
                  const std::filesystem::path& path) {
  size_t done = 0;
  while (done < into.size()) {
    const ssize_t got = ::pread(file.get(), into.data() + done, std::min(into.size() - done, kMaxTransfer),
                                static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_failed_call(ExitCode::kIo, "read", path, errno);
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

void write_fully(const FileDescriptor& file, uint64_t offset, std::span<const std::byte> bytes,
                 const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t put =
        ::pwrite(file.get(), bytes.data(), std::min(bytes.size(), kMaxTransfer), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw_failed_call(ExitCode::kIo, "write", path, errno);
    offset += static_cast<uint64_t>(put);
    bytes = bytes.subspan(static_cast<size_t>(put));
  }
}

void copy_data(const FileDescriptor& from, const FileDescriptor& to, const std::filesystem::path& path) {
  std::vector<std::byte> piece(size_t{1} << 20);
  for (off_t begin = 0, end = 0; (begin = ::lseek(from.get(), end, SEEK_DATA)) >= 0;) {
    end = ::lseek(from.get(), begin, SEEK_HOLE);
    for (auto at = static_cast<uint64_t>(begin); at < static_cast<uint64_t>(end);) {
      const size_t wanted = std::min<uint64_t>(piece.size(), static_cast<uint64_t>(end) - at);
      const size_t got = read_up_to(from, at, std::span(piece).first(wanted), path);
      if (got == 0) return;
      write_fully(to, at, std::span(piece).first(got), path);
      at += got;
    }
  }
  if (errno != ENXIO) throw_failed_call(ExitCode::kIo, "lseek", path, errno);  // ENXIO: no more data
}

FileMapping::~FileMapping() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

void FileMapping::write(uint64_t offset, std::span<const std::byte> bytes) const {
  expect(offset <= bytes_ && bytes.size() <= bytes_ - offset, "FileMapping::write: outside the mapping");
  copy_past_caches(data_ + offset, bytes.data(), bytes.size());
}

FileMapping map_for_writing(const FileDescriptor& file, uint64_t bytes, const std::filesystem::path& path) {
  if (bytes == 0) return {};
  int error = 0;
  do {
    error = ::fallocate(file.get(), 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error == EOPNOTSUPP || error == ENOSYS) return {};
  if (error != 0) throw_failed_call(ExitCode::kIo, fmt::format("reserving {} bytes", bytes).c_str(), path, error);
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  return data == MAP_FAILED ? FileMapping() : FileMapping(static_cast<std::byte*>(data), bytes);
}

AtomicFile::AtomicFile(PendingPath pending)
    : pending_(std::move(pending)), fd_(create_file(pending_.temporary_path())) {}

void AtomicFile::write(std::span<const std::byte> bytes) { write_at(end_, bytes); }

void AtomicFile::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  write_fully(fd_, offset, bytes, path());
  end_ = std::max(end_, offset + bytes.size());
}

void AtomicFile::reserve(uint64_t bytes) {
  if (bytes == 0 || ::fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes)) == 0) return;
  if (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINTR)
    throw_failed_call(ExitCode::kIo, fmt::format("reserving {} bytes", bytes).c_str(), path(), errno);
}

// The call is only a hint to the kernel; its errors show up in sync().
void AtomicFile::start_writeback(uint64_t offset, uint64_t bytes) {
  ::sync_file_range(fd_.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes), SYNC_FILE_RANGE_WRITE);
}

void AtomicFile::sync() { sync_file(fd_, path()); }

void AtomicFile::commit() {
  if (fd_.close() != 0) throw_failed_call(ExitCode::kIo, "close", path(), errno);
  pending_.commit();
}

FileDescriptor create_file(const std::filesystem::path& path) {
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (file.get() < 0) throw_failed_call(ExitCode::kCantCreate, "cannot be created: open", path, errno);
  return file;
}

FileDescriptor open_for_writing(const std::filesystem::path& path) {
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (file.get() < 0) throw_failed_call(ExitCode::kIo, "open", path, errno);
  return file;
}

void sync_path(const std::filesystem::path& path) {
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) throw_failed_call(ExitCode::kIo, "open", path, errno);
  sync_file(fd, path);
}

void sync_file(const FileDescriptor& file, const std::filesystem::path& path) {
  if (::fsync(file.get()) != 0) throw_failed_call(ExitCode::kIo, "fsync", path, errno);
}

void sync_data(const FileDescriptor& file, const std::filesystem::path& path) {
  if (::fdatasync(file.get()) != 0) throw_failed_call(ExitCode::kIo, "fsync", path, errno);
}

void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) throw_failed_call(ExitCode::kIo, "rename", to, errno);
  const auto folder = to.parent_path();
  sync_path(folder.empty() ? "." : folder);
}

uint64_t checked_multiply(uint64_t a, uint64_t b, const std::string& what) {
  uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product))
    throw Error(ExitCode::kData, fmt::format("{}: {} x {} exceeds 64 bits", what, a, b));
  return product;
}

uint64_t checked_add(uint64_t a, uint64_t b, const std::string& what) {
  uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum))
    throw Error(ExitCode::kData, fmt::format("{}: {} + {} exceeds 64 bits", what, a, b));
  return sum;
}

}  // namespace lfm2
