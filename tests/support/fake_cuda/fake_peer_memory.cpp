// Device memory is shared memory of the host: another process opens it by way of this one's file descriptors. Flags of
// streams are words in it.
#include <cudaTypedefs.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <map>
#include <string>

#include "fake_cuda.h"

namespace {

struct Memory {
  pid_t process;
  int file;
  size_t bytes;
};

// What this process made (with its file) and what it opened (with -1).
std::map<void*, Memory>& memories() {
  static std::map<void*, Memory> all;
  return all;
}

void* map_shared(int file, size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return data == MAP_FAILED ? nullptr : data;
}

CUresult write_value(CUstream stream, CUdeviceptr word, cuuint32_t value, unsigned int) {
  enqueue_fake_work(stream, [word, value] {
    if (fake_fault("writes-lost") < 0) std::atomic_ref(*reinterpret_cast<uint32_t*>(word)).store(value);
    return true;
  });
  return CUDA_SUCCESS;
}

CUresult wait_value(CUstream stream, CUdeviceptr word, cuuint32_t value, unsigned int) {
  enqueue_fake_work(stream, [word, value] {
    return static_cast<int32_t>(std::atomic_ref(*reinterpret_cast<uint32_t*>(word)).load() - value) >= 0;
  });
  return CUDA_SUCCESS;
}

}  // namespace

void* fake_device_memory(size_t bytes) {
  const int file = memfd_create("fake device memory", 0);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) return nullptr;
  void* data = map_shared(file, bytes);
  memories()[data] = {getpid(), file, bytes};
  return data;
}

void free_fake_device_memory(void* data) {
  const Memory memory = memories().extract(data).mapped();
  munmap(data, memory.bytes);
  if (memory.file >= 0) close(memory.file);
}

extern "C" {

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* data) {
  static_assert(sizeof(Memory) <= sizeof *handle);
  std::memcpy(handle, &memories().at(data), sizeof(Memory));
  return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void** data, cudaIpcMemHandle_t handle, unsigned int) {
  if (fake_fault("no-peer") >= 0) return cudaErrorPeerAccessUnsupported;
  Memory memory{};
  std::memcpy(&memory, &handle, sizeof memory);
  const std::string path = "/proc/" + std::to_string(memory.process) + "/fd/" + std::to_string(memory.file);
  const int file = open(path.c_str(), O_RDWR);
  if (file < 0) return cudaErrorUnknown;
  *data = map_shared(file, memory.bytes);
  close(file);
  memories()[*data] = {memory.process, -1, memory.bytes};
  return *data == nullptr ? cudaErrorUnknown : cudaSuccess;
}

cudaError_t cudaIpcCloseMemHandle(void* data) {
  free_fake_device_memory(data);
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) { return cudaSuccess; }

cudaError_t cudaMemset(void* data, int value, size_t bytes) {
  std::memset(data, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  static int copies = 0;
  const double never = fake_fault("copy-never");
  const bool hangs = never >= 0 && ++copies >= never;
  enqueue_fake_work(stream, [=] {
    if (!hangs) std::memcpy(to, from, bytes);
    return !hangs;
  });
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned int, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  const std::string wanted = name;
  *function = wanted == "cuStreamWriteValue32"  ? reinterpret_cast<void*>(write_value)
              : wanted == "cuStreamWaitValue32" ? reinterpret_cast<void*>(wait_value)
                                                : nullptr;
  *result = *function != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

}  // extern "C"
