// The CUDA backend: the device, its memory, one compute stream, and the operators on it.
#include "kernels/cuda/cuda_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/cuda/attention/launch.h"
#include "kernels/cuda/common/cuda_check.h"
#include "kernels/cuda/cuda_loader.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/cuda_recording.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/experts/launch.h"
#include "kernels/cuda/rows/launch.h"

namespace lfm2 {

namespace {

constexpr size_t kSmallestAllocation = 256;  // so that an allocation of 0 bytes is not null either

double gigabytes(size_t bytes) { return static_cast<double>(bytes) * 1e-9; }

std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (size_t i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

// Makes `device` the calling thread's GPU, or throws the reason why it cannot be.
int select(int device) {
  const int count = cuda_device_count();
  if (device < 0 || device >= count)
    throw Error(ExitCode::kUnavailable, count == 0 ? std::string("no GPU: CUDA finds no device or no driver")
                                                   : fmt::format("no GPU {}: this process sees {}", device, count));
  const cudaError_t error = cudaSetDevice(device);
  if (error != cudaSuccess)
    throw Error(ExitCode::kUnavailable, fmt::format("GPU {} cannot be used: {}", device, cudaGetErrorString(error)));
  return device;
}

// Whether kernels may use the memory: that of the GPU, and that of allocate_host.
bool reached_by_kernels(const void* memory) {
  cudaPointerAttributes attributes{};
  CUDA_CHECK(cudaPointerGetAttributes(&attributes, memory));
  return attributes.type != cudaMemoryTypeUnregistered && attributes.devicePointer == memory;
}

// Enqueues a copy between the kernels of a step: a kernel copies few bytes sooner than a copy engine. (On another
// stream, beside those kernels, it would wait for room.)
void copy_between_kernels(cudaStream_t stream, void* to, const void* from, size_t bytes) {
  constexpr size_t kFewBytes = 16384, kWord = 4;
  const auto in_words = [](const void* memory) { return reinterpret_cast<uintptr_t>(memory) % kWord == 0; };
  if (bytes <= kFewBytes && bytes % kWord == 0 && in_words(to) && in_words(from) && reached_by_kernels(to) &&
      reached_by_kernels(from))
    return launch_copy_words(stream, to, from, static_cast<int>(bytes / kWord));
  CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
}

class CudaBackend final : public Backend {
 public:
  CudaBackend(int device, CudaOptions options)
      : device_(select(device)),
        facts_(cuda_device_facts(device)),
        ops_(stream_.native(),
             {LFM2_HAS_SM90A && !options.portable && facts_.compute_capability == 90, options.plain_fp32},
             facts_.multiprocessors, workspaces()),
        uploader_(*this) {
    const cudaError_t error = probe_kernels();
    if (error != cudaSuccess)
      throw Error(ExitCode::kUnavailable,
                  fmt::format("GPU {} ({}, compute capability {}.{}): this program has no code for it: {}", device_,
                              facts_.name, facts_.compute_capability / 10, facts_.compute_capability % 10,
                              cudaGetErrorString(error)));
  }

  std::string description() const override { return fmt::format("CUDA, GPU {}, {}", device_, facts_.name); }

  Buffer allocate(size_t bytes) override {
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, std::max(bytes, kSmallestAllocation));
    if (error == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());  // otherwise a later check would find this error
      size_t free_bytes = 0, total_bytes = 0;
      CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
      throw Error(
          ExitCode::kUnavailable,
          fmt::format("GPU {} ({}) is out of memory: an allocation needs {:.3f} GB, {:.3f} GB of {:.3f} GB free",
                      device_, facts_.name, gigabytes(bytes), gigabytes(free_bytes), gigabytes(total_bytes)));
    }
    CUDA_CHECK(error);
    return Buffer(data, bytes, [](void* memory) { static_cast<void>(cudaFree(memory)); });
  }

  Buffer allocate_host(size_t bytes) override {
    void* data = nullptr;
    const cudaError_t error = cudaHostAlloc(&data, std::max(bytes, kSmallestAllocation), cudaHostAllocPortable);
    if (error == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());
      throw Error(
          ExitCode::kUnavailable,
          fmt::format("not enough host memory that the GPU can copy from: {:.3f} GB were asked for", gigabytes(bytes)));
    }
    CUDA_CHECK(error);
    return Buffer(data, bytes, [](void* memory) { static_cast<void>(cudaFreeHost(memory)); });
  }

  uint64_t free_bytes() const override { return cuda_device_facts(device_).free_bytes; }
  std::unique_ptr<Recording> record(const std::function<void()>& work) override {
    return std::make_unique<CudaRecording>(stream_.native(), work);
  }
  std::unique_ptr<Event> create_event() override { return std::make_unique<CudaEvent>(); }
  std::unique_ptr<Stream> create_stream() override { return std::make_unique<CudaStream>(); }
  bool memory_is_host_memory() const override { return false; }
  Stream& compute() override { return stream_; }
  Ops& ops() override { return ops_; }
  void reserve_sms(int sms) override { ops_.reserve_sms(sms); }

  void copy(Stream& stream, void* to, const void* from, size_t bytes) override {
    if (bytes == 0) return;
    const cudaStream_t native = dynamic_cast<CudaStream&>(stream).native();
    if (native == stream_.native()) return copy_between_kernels(native, to, from, bytes);
    CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, native));
  }

  void copy_to_host(void* host, const Tensor& source) override {
    if (source.bytes() == 0) return;
    copy_between_kernels(stream_.native(), host, source.data, source.bytes());
  }

  void upload(const Tensor& target, int64_t first, DType from, const void* source, int64_t count) override {
    expect(first >= 0 && count >= 0 && first + count <= target.numel(), "upload: outside the tensor");
    const auto piece_count = static_cast<int64_t>(Loader::kPieceBytes / size_bytes(from));
    for (int64_t done = 0; done < count; done += piece_count) {
      const int64_t now = std::min(piece_count, count - done);
      std::memcpy(uploader_.piece().data(),
                  static_cast<const std::byte*>(source) + static_cast<size_t>(done) * size_bytes(from),
                  static_cast<size_t>(now) * size_bytes(from));
      uploader_.put(target, {.first = first}, done, from, now);
    }
    uploader_.finish();
  }

  std::unique_ptr<Loader> create_loader() override {
    CUDA_CHECK(cudaSetDevice(device_));  // the calling thread may be a new one
    return std::make_unique<CudaLoader>(*this);
  }

 private:
  CudaWorkspaces workspaces() {
    CudaWorkspaces made{.group = allocate(kGroupWorkspaceInts * sizeof(int32_t)),
                        .route = allocate(kRouteExchangeBytes),
                        .decode_partials = allocate(kDecodePartialFloats * sizeof(float)),
                        .decode_counters = allocate(kDecodeCounters * sizeof(int32_t)),
                        .attention_unit = allocate(sizeof(int32_t)),
                        .lt = allocate(LtMatmul::kWorkspaceBytes)};
    CUDA_CHECK(cudaMemset(made.route.data(), 0, made.route.bytes()));
    CUDA_CHECK(cudaMemset(made.decode_counters.data(), 0, made.decode_counters.bytes()));
    CUDA_CHECK(cudaMemset(made.attention_unit.data(), 0, made.attention_unit.bytes()));
    return made;
  }

  int device_;
  CudaDeviceFacts facts_;
  CudaStream stream_;
  CudaOps ops_;
  CudaLoader uploader_;
};

}  // namespace

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return 0;
  }
  return count;
}

CudaDeviceFacts cuda_device_facts(int device) {
  const int count = cuda_device_count();
  if (device < 0 || device >= count)
    throw Error(ExitCode::kUnavailable, fmt::format("no GPU {}: this process sees {}", device, count));
  cudaDeviceProp properties;
  CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  CudaDeviceFacts facts;
  facts.name = properties.name;
  facts.uuid = uuid_text(properties.uuid);
  facts.compute_capability = properties.major * 10 + properties.minor;
  facts.multiprocessors = properties.multiProcessorCount;
  std::array<char, 32> bus_id{};
  CUDA_CHECK(cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()), device));
  facts.bus_id = bus_id.data();
  size_t free_bytes = 0, total_bytes = 0;
  CUDA_CHECK(cudaSetDevice(device));
  CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  facts.free_bytes = free_bytes;
  facts.total_bytes = total_bytes;
  return facts;
}

std::string cuda_versions() {
  int runtime = 0, driver = 0;
  CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
  CUDA_CHECK(cudaDriverGetVersion(&driver));
  const auto text = [](int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); };
  return fmt::format("{}, driver {}", text(runtime), text(driver));
}

std::vector<CudaPeer> cuda_peers(int device) {
  std::vector<CudaPeer> peers;
  for (int other = 0; other < cuda_device_count(); ++other) {
    if (other == device) continue;
    int direct = 0, atomics = 0;
    CUDA_CHECK(cudaDeviceCanAccessPeer(&direct, device, other));
    if (direct != 0)
      CUDA_CHECK(cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, device, other));
    cudaDeviceProp properties;
    CUDA_CHECK(cudaGetDeviceProperties(&properties, other));
    peers.push_back({uuid_text(properties.uuid), direct != 0, atomics != 0});
  }
  return peers;
}

std::unique_ptr<Backend> make_cuda_backend(int device, CudaOptions options) {
  return std::make_unique<CudaBackend>(device, options);
}

}  // namespace lfm2
