// Memory of a GPU that another process on the same host reaches from its own GPU (CUDA IPC), and flags in such memory,
// which streams write and wait for.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace lfm2 {

// What another process needs to reach an allocation, as bytes that can be sent to it.
using PeerHandle = std::array<char, CUDA_IPC_HANDLE_SIZE>;
// The handle of an allocation of the calling thread's GPU, passed by its first byte. Error(kUnavailable) if it cannot
// be shared.
PeerHandle peer_handle(void* allocation);

// Another process's allocation, as the calling thread's GPU reaches it. The owner must not free it before this object
// ends.
class PeerMemory {
 public:
  // Error(kUnavailable) if the two GPUs cannot reach each other's memory.
  explicit PeerMemory(const PeerHandle& handle);
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;
  ~PeerMemory();

  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

// Sets the flag after all earlier work on the stream and after a fence for all GPUs of the host. CUDA guarantees more
// about what the waiting side sees only with CU_STREAM_WAIT_VALUE_FLUSH, which not all GPUs have. Without it, this has
// been run over NVLink but not over PCIe.
void write_flag(cudaStream_t stream, uint32_t* flag, uint32_t value);
// Later work on the stream waits until the flag has the value or a later one, counted modulo 2^32.
void wait_for_flag(cudaStream_t stream, uint32_t* flag, uint32_t value);

}  // namespace lfm2
