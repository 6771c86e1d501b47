// The ring.
#include "kernels/cuda/uploader.h"

#include <algorithm>
#include <cstring>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/launch.h"

namespace lfm2 {

Uploader::Uploader(Buffer pinned, Buffer staging, int threads)
    : pinned_(std::move(pinned)), staging_(std::move(staging)), pool_(threads) {
  expect(pinned_.bytes() >= kPieces * kPieceBytes && staging_.bytes() >= kPieceBytes, "Uploader: buffers");
}

void Uploader::fill(std::byte* piece, const std::byte* source, size_t bytes) {
  constexpr size_t kSlice = size_t{1} << 20;
  if (bytes <= kSlice) {
    std::memcpy(piece, source, bytes);
    return;
  }
  pool_.parallel_for((bytes + kSlice - 1) / kSlice, [&](size_t slice, size_t) {
    const size_t first = slice * kSlice;
    std::memcpy(piece + first, source + first, std::min(kSlice, bytes - first));
  });
}

void Uploader::upload(CudaStream& stream, void* target, DType to, DType from, const void* source, int64_t count) {
  const auto piece_count = static_cast<int64_t>(kPieceBytes / size_bytes(from));
  for (int64_t done = 0; done < count; done += piece_count) {
    const int64_t now = std::min(piece_count, count - done);
    const size_t bytes = static_cast<size_t>(now) * size_bytes(from);
    const CudaEvent& copied = copied_[next_];
    CUDA_CHECK(cudaEventSynchronize(copied.native()));
    std::byte* piece = pinned_.data() + next_ * kPieceBytes;
    fill(piece, static_cast<const std::byte*>(source) + static_cast<size_t>(done) * size_bytes(from), bytes);
    std::byte* place = static_cast<std::byte*>(target) + static_cast<size_t>(done) * size_bytes(to);
    // One staging buffer is enough: the stream converts it before the next copy into it begins.
    CUDA_CHECK(
        cudaMemcpyAsync(from == to ? place : staging_.data(), piece, bytes, cudaMemcpyHostToDevice, stream.native()));
    CUDA_CHECK(cudaEventRecord(copied.native(), stream.native()));
    if (from != to) launch_convert(stream.native(), {staging_.data(), from}, place, to, now);
    next_ = (next_ + 1) % kPieces;
  }
}

}  // namespace lfm2
