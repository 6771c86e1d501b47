// Fills and copies the two pieces in turn.
#include "kernels/cuda/cuda_loader.h"

#include "kernels/cuda/common/cuda_check.h"
#include "kernels/cuda/rows/launch.h"

namespace lfm2 {

CudaLoader::CudaLoader(Backend& backend) : backend_(backend) {
  for (Piece& piece : pieces_) piece.memory = backend.allocate_host(kPieceBytes);
}

CudaLoader::~CudaLoader() { stream_.drain(); }

std::span<std::byte> CudaLoader::piece() {
  Piece& piece = pieces_[filling_];
  piece.copied.wait();
  return {piece.memory.data(), kPieceBytes};
}

const void* CudaLoader::converted(const void* piece, DType from, DType to, int64_t count) {
  if (!raw_.data()) {
    raw_ = backend_.allocate(kPieceBytes);
    converted_ = backend_.allocate(2 * kPieceBytes);  // an element of 2 bytes becomes one of at most 4
  }
  const size_t bytes = static_cast<size_t>(count) * size_bytes(from);
  CUDA_CHECK(cudaMemcpyAsync(raw_.data(), piece, bytes, cudaMemcpyHostToDevice, stream_.native()));
  launch_convert(stream_.native(), {raw_.data(), from}, converted_.data(), to, count);
  return converted_.data();
}

void CudaLoader::put(const Tensor& target, const Placement& place, int64_t element, DType from, int64_t count) {
  Piece& piece = pieces_[filling_];
  if (count == 0) return;
  expect(static_cast<size_t>(count) * size_bytes(from) <= kPieceBytes, "Loader::put: more than a piece");
  const int64_t block = place.block == 0 ? count : place.block, blocks = count / block;
  expect(place.block == 0 || (element % block == 0 && count % block == 0), "Loader::put: a part of a block");
  const int64_t first = place.first + (place.block == 0 ? element : element / block * place.stride);
  const int64_t stride = place.block == 0 ? block : place.stride;
  expect(first >= 0 && first + (blocks - 1) * stride + block <= target.numel(), "Loader::put: outside the tensor");
  const void* source =
      from == target.dtype ? piece.memory.data() : converted(piece.memory.data(), from, target.dtype, count);
  const size_t element_bytes = size_bytes(target.dtype), width = static_cast<size_t>(block) * element_bytes;
  std::byte* to = target.data + static_cast<size_t>(first) * element_bytes;
  if (blocks == 1)
    CUDA_CHECK(cudaMemcpyAsync(to, source, width, cudaMemcpyDefault, stream_.native()));
  else
    CUDA_CHECK(cudaMemcpy2DAsync(to, static_cast<size_t>(stride) * element_bytes, source, width, width,
                                 static_cast<size_t>(blocks), cudaMemcpyDefault, stream_.native()));
  CUDA_CHECK(cudaEventRecord(piece.copied.native(), stream_.native()));
  filling_ = 1 - filling_;
}

void CudaLoader::finish() {
  for (const Piece& piece : pieces_) piece.copied.wait();
}

}  // namespace lfm2
