// Memory of a GPU that another process on the same host reaches from its own GPU (CUDA IPC), and flags in it, which
// streams write and wait for.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace lfm2 {

// What another process needs to reach an allocation, as bytes that can be sent to it.
using PeerHandle = std::array<char, CUDA_IPC_HANDLE_SIZE>;
// Of an allocation of the calling thread's GPU, from its first byte on. Error(kUnavailable) where it cannot be shared.
PeerHandle peer_handle(void* allocation);

// Another process's allocation, as the calling thread's GPU reaches it. It must not be freed before this ends.
class PeerMemory {
 public:
  // Error(kUnavailable) where the two GPUs cannot reach each other's memory.
  explicit PeerMemory(const PeerHandle& handle);
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;
  ~PeerMemory();

  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

// The flag gets the value behind everything that is before it on the stream, and behind a fence for all GPUs of the
// host. CUDA says more of what the waiting side sees only with CU_STREAM_WAIT_VALUE_FLUSH, which not all GPUs have;
// without it this has run over NVLink, and not over PCIe.
void write_flag(cudaStream_t stream, uint32_t* flag, uint32_t value);
// What comes later on the stream waits until the flag has the value or a later one, counted modulo 2^32.
void wait_for_flag(cudaStream_t stream, uint32_t* flag, uint32_t value);

}  // namespace lfm2
