// Aligned allocation of host memory.
#include "kernels/cpu/growing_buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <limits>

namespace lfm2 {

Buffer allocate_aligned(size_t bytes) {
  constexpr size_t kAlignment = 64, kHugePage = size_t{2} << 20;
  const size_t alignment = bytes >= kHugePage ? kHugePage : kAlignment;
  void* data = nullptr;
  if (bytes <= std::numeric_limits<size_t>::max() - alignment) {
    const size_t rounded = bytes == 0 ? kAlignment : (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (posix_memalign(&data, alignment, rounded) != 0) data = nullptr;
  }
  if (data == nullptr)
    throw Error(ExitCode::kUnavailable, fmt::format("not enough memory: {} bytes were asked for", bytes));
  // Only a hint: with huge pages, reading weights misses the TLB far less often. Nothing depends on it.
  if (alignment == kHugePage) static_cast<void>(madvise(data, bytes, MADV_HUGEPAGE));
  return Buffer(data, bytes, std::free);
}

}  // namespace lfm2
