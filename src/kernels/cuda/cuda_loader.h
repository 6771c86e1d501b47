// Brings weights and indices to the GPU: pieces of pinned host memory, copied on a stream of their own while the next
// piece is filled, converted on the GPU where the types differ. One for each reader thread; made by CudaBackend.
#pragma once

#include <array>
#include <cstddef>

#include "kernels/backend.h"
#include "kernels/cuda/cuda_stream.h"

namespace lfm2 {

class CudaLoader final : public Loader {
 public:
  // `backend` is asked for memory: two pieces on the host now, and on the device what conversions need when one comes.
  explicit CudaLoader(Backend& backend);
  ~CudaLoader() override;

  std::span<std::byte> piece() override;
  void put(const Tensor& target, const Placement& place, int64_t element, DType from, int64_t count) override;
  void finish() override;

 private:
  struct Piece {
    Buffer memory;
    CudaTimingEvent copied;
  };
  const void* converted(const void* piece, DType from, DType to, int64_t count);

  Backend& backend_;
  Buffer raw_, converted_;  // on the device; the stream is done with them before the next copy into them begins
  std::array<Piece, 2> pieces_;
  size_t filling_ = 0;
  CudaStream stream_;  // last: drained before the memory goes
};

}  // namespace lfm2
