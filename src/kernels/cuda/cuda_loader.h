// Brings weights and indices to the GPU: copies pieces of pinned host memory on its own stream while the next piece is
// filled, and converts on the GPU if the types differ. Each reader thread has one loader, made by CudaBackend.
#pragma once

#include <array>
#include <cstddef>

#include "kernels/backend.h"
#include "kernels/cuda/cuda_stream.h"

namespace lfm2 {

class CudaLoader final : public Loader {
 public:
  // Allocates two pieces on the host with `backend`. The first conversion allocates its device memory.
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
  CudaStream stream_;  // last, so that it is drained before the memory is freed
};

}  // namespace lfm2
