// Brings weights and indices to the GPU: through a ring of pinned buffers, so that copying into the ring and over the
// bus overlap, and converting on the GPU where the types differ. Owned by CudaBackend.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cuda/cuda_stream.h"

namespace lfm2 {

class Uploader {
 public:
  static constexpr size_t kPieceBytes = size_t{8} << 20, kPieces = 4;

  // `pinned`: kPieces * kPieceBytes of host memory; `staging`: kPieceBytes on the device.
  Uploader(Buffer pinned, Buffer staging, int threads);

  // Enqueues on `stream`; when it returns, `source` may be used again.
  void upload(CudaStream& stream, void* target, DType to, DType from, const void* source, int64_t count);

 private:
  void fill(std::byte* piece, const std::byte* source, size_t bytes);

  Buffer pinned_, staging_;
  std::array<CudaEvent, kPieces> copied_;  // the piece went over the bus and may be filled again
  size_t next_ = 0;
  ThreadPool pool_;  // one thread copies slower than the bus
};

}  // namespace lfm2
