// Reserves twice the needed addresses and maps them piece by piece. When they are used up, all pieces move.
#include "stage/io/samples/temporary_range.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/host_memory.h"

namespace lfm2 {

namespace {

constexpr uint64_t kBytesMovedAtOnce = uint64_t{4} << 20;
constexpr uint64_t kFewAddresses = uint64_t{64} << 20;

std::filesystem::path temporary_folder() {
  const char* folder = std::getenv("TMPDIR");
  return folder != nullptr && *folder != '\0' ? folder : "/var/tmp";
}

double gigabytes(uint64_t bytes) { return static_cast<double>(bytes) / 1e9; }

}  // namespace

TemporaryRange::~TemporaryRange() {
  if (data_ != nullptr) ::munmap(data_, addresses_);
}

void TemporaryRange::swap(TemporaryRange& other) noexcept {
  std::swap(most_, other.most_);
  std::swap(in_memory_, other.in_memory_);
  std::swap(what_, other.what_);
  std::swap(data_, other.data_);
  std::swap(addresses_, other.addresses_);
  std::swap(piece_ends_, other.piece_ends_);
  std::swap(capacity_, other.capacity_);
  std::swap(file_, other.file_);
  std::swap(file_begin_, other.file_begin_);
  std::swap(file_bytes_, other.file_bytes_);
  std::swap(file_is_full_, other.file_is_full_);
}

void TemporaryRange::grow(uint64_t bytes) {
  if (bytes > most_)
    throw Error(ExitCode::kData, fmt::format("the {} of one job take more than {:.2f} GB", what_, gigabytes(most_)));
  // In steps of an eighth, so that the pieces of a large job stay few.
  const uint64_t wanted = std::max(bytes, capacity_ + capacity_ / 8);
  const uint64_t end = std::min((wanted + kBytesMovedAtOnce - 1) / kBytesMovedAtOnce * kBytesMovedAtOnce, most_);
  if (end > addresses_) set_addresses_aside(end);
  if (bytes <= in_memory_ || !map_file(capacity_, end - capacity_)) map_memory(capacity_, end - capacity_, bytes);
  piece_ends_.push_back(capacity_ = end);
  rest();
}

// A limit of the address space (ulimit -v) may leave only the needed size.
void TemporaryRange::set_addresses_aside(uint64_t bytes) {
  void* range = MAP_FAILED;
  uint64_t room = 0;
  for (const uint64_t wanted : {std::min(std::max(2 * bytes, kFewAddresses), most_), bytes})
    if (range == MAP_FAILED)
      range = ::mmap(nullptr, room = wanted, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  const auto fail = [&] {
    throw Error(ExitCode::kUnavailable, fmt::format("{} bytes of addresses for {}: {}, expected a higher limit of "
                                                    "addresses (ulimit -v)",
                                                    bytes, what_, std::strerror(errno)));
  };
  if (range == MAP_FAILED) fail();
  auto* const to = static_cast<std::byte*>(range);
  uint64_t begin = 0;
  for (const uint64_t end : piece_ends_) {  // mremap moves parts of one mapping, and each piece was mapped by one call
    if (::mremap(data_ + begin, end - begin, end - begin, MREMAP_MAYMOVE | MREMAP_FIXED, to + begin) == MAP_FAILED)
      fail();
    begin = end;
  }
  if (data_ != nullptr) ::munmap(data_, addresses_);
  data_ = to;
  addresses_ = room;
}

void TemporaryRange::rest() const {
  // A shared mapping of a file: the pages belong to the file, so no data is lost.
  if (file_bytes_ > 0) ::madvise(data_ + file_begin_, file_bytes_, MADV_DONTNEED);
}

// Returns false if no temporary file can hold the bytes.
bool TemporaryRange::map_file(uint64_t first, uint64_t bytes) {
  if (file_is_full_) return false;
  file_is_full_ = true;  // unless the following calls succeed
  if (file_.get() < 0) {
    file_ = FileDescriptor(::open(temporary_folder().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    if (file_.get() < 0) return false;
    file_begin_ = first;
  }
  // Disk space is reserved now, because a write into a mapping on a full disk would end the process.
  if (::posix_fallocate(file_.get(), static_cast<off_t>(file_bytes_), static_cast<off_t>(bytes)) != 0) return false;
  if (::mmap(data_ + first, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_.get(),
             static_cast<off_t>(file_bytes_)) == MAP_FAILED)
    return false;
  file_bytes_ += bytes;
  file_is_full_ = false;
  return true;
}

// Missing memory is refused here, and not by the kernel in the middle of the job.
void TemporaryRange::map_memory(uint64_t first, uint64_t bytes, uint64_t wanted) {
  const uint64_t available = available_host_memory();
  const bool large = bytes > in_memory_;
  if ((large && available > 0 && bytes > available) ||
      ::mmap(data_ + first, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
          MAP_FAILED)
    throw Error(ExitCode::kUnavailable,
                fmt::format("the {} take {:.2f} GB on this host, which {} has no room for, and {:.2f} GB of memory are "
                            "available: expected fewer samples at a time (--samples), more memory, or TMPDIR on a "
                            "larger disk",
                            what_, gigabytes(wanted), temporary_folder().string(), gigabytes(available)));
}

}  // namespace lfm2
