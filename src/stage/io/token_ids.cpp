// The addresses for all ids are set aside at once and mapped piece by piece: what was written never moves.
#include "stage/io/token_ids.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "kernels/error.h"
#include "kernels/host_memory.h"

namespace lfm2 {

namespace {

constexpr uint64_t kPieceBytes = uint64_t{4} << 20;
constexpr uint64_t kRangeBytes = TokenIds::kMaxIds * sizeof(int32_t);

std::filesystem::path temporary_folder() {
  const char* folder = std::getenv("TMPDIR");
  return folder != nullptr && *folder != '\0' ? folder : "/var/tmp";
}

}  // namespace

TokenIds::~TokenIds() {
  if (data_ != nullptr) ::munmap(data_, kRangeBytes);
}

void TokenIds::swap(TokenIds& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(capacity_, other.capacity_);
  std::swap(memory_ids_, other.memory_ids_);
  std::swap(file_, other.file_);
  std::swap(file_bytes_, other.file_bytes_);
}

bool TokenIds::operator==(const TokenIds& other) const {
  return std::equal(begin(), end(), other.begin(), other.end());
}

void TokenIds::append(std::span<const int32_t> ids) {
  if (ids.empty()) return;
  reserve(size_ + ids.size());
  std::memcpy(data_ + size_, ids.data(), ids.size_bytes());
  size_ += ids.size();
}

void TokenIds::resize(size_t size) {
  reserve(size);
  size_ = size;
}

void TokenIds::grow(uint64_t ids) {
  if (ids > kMaxIds) throw Error(ExitCode::kData, "more than 2^31 tokens in one job");
  if (data_ == nullptr) {
    void* range = ::mmap(nullptr, kRangeBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED)
      throw Error(ExitCode::kUnavailable,
                  fmt::format("mmap of {} bytes of addresses for token ids: {}", kRangeBytes, std::strerror(errno)));
    data_ = static_cast<int32_t*>(range);
  }
  // In steps of an eighth, so that the pieces of a large job stay few.
  const uint64_t first = capacity_ * sizeof(int32_t), wanted = std::max(ids, capacity_ + capacity_ / 8);
  const uint64_t end = std::min((wanted * sizeof(int32_t) + kPieceBytes - 1) / kPieceBytes * kPieceBytes, kRangeBytes);
  if (ids <= memory_ids_ || !map_file(first, end - first)) map_memory(first, end - first, ids);
  capacity_ = end / sizeof(int32_t);
}

// False where no temporary file can hold the ids.
bool TokenIds::map_file(uint64_t first_byte, uint64_t bytes) {
  if (file_.get() < 0) {
    file_ = FileDescriptor(::open(temporary_folder().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    if (file_.get() < 0) return false;
  }
  // Disk space is taken now: a write into a mapping that finds none would end the process.
  if (::posix_fallocate(file_.get(), static_cast<off_t>(file_bytes_), static_cast<off_t>(bytes)) != 0) return false;
  void* const place = reinterpret_cast<std::byte*>(data_) + first_byte;
  if (::mmap(place, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_.get(),
             static_cast<off_t>(file_bytes_)) == MAP_FAILED)
    return false;
  file_bytes_ += bytes;
  return true;
}

// Memory that is not there is refused here, and not by the kernel in the middle of the job.
void TokenIds::map_memory(uint64_t first_byte, uint64_t bytes, uint64_t ids) {
  const uint64_t available = available_host_memory();
  const bool large = bytes > memory_ids_ * sizeof(int32_t);
  void* const place = reinterpret_cast<std::byte*>(data_) + first_byte;
  if ((large && available > 0 && bytes > available) ||
      ::mmap(place, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
    throw Error(ExitCode::kUnavailable,
                fmt::format("{} token ids take {:.2f} GB on rank 0's host, which {} has no room for, and {:.2f} GB of "
                            "memory are available: expected fewer samples at a time (--samples), more memory, or "
                            "TMPDIR on a larger disk",
                            ids, static_cast<double>(ids * sizeof(int32_t)) / 1e9, temporary_folder().string(),
                            static_cast<double>(available) / 1e9));
}

}  // namespace lfm2
