// The CPU backend: combines the operators, the stream and the loader.
#include "kernels/cpu/cpu_backend.h"

#include <fmt/format.h>

#include <cstring>

namespace lfm2 {

namespace {

const Simd& find_simd(std::string_view name) {
  const std::vector<const Simd*> tables = available_simd();
  for (const Simd* table : tables)
    if (name == "auto" || name == table->name) return *table;
  std::string names;
  for (const Simd* table : tables) names += fmt::format("{}{}", names.empty() ? "" : ", ", table->name);
  throw Error(ExitCode::kUnavailable, fmt::format("--simd {}: this processor has {}", name, names));
}

class CpuLoader final : public Loader {
 public:
  std::span<std::byte> piece() override { return {piece_.data(), kPieceBytes}; }

  void put(const Tensor& target, const Placement& place, int64_t element, DType from, int64_t count) override {
    const int64_t block = place.block == 0 ? count : place.block;
    expect(place.block == 0 || (element % block == 0 && count % block == 0), "Loader::put: a part of a block");
    for (int64_t done = 0; done < count; done += block) {
      const int64_t first =
          place.block == 0 ? place.first + element : place.first + (element + done) / block * place.stride;
      expect(first >= 0 && first + block <= target.numel(), "Loader::put: outside the tensor");
      convert(from, piece_.data() + static_cast<size_t>(done) * size_bytes(from), target.dtype,
              target.data + static_cast<size_t>(first) * size_bytes(target.dtype), static_cast<size_t>(block));
    }
  }

  void finish() override {}

 private:
  Buffer piece_ = allocate_aligned(kPieceBytes);
};

}  // namespace

CpuBackend::CpuBackend(int threads, std::string_view simd, bool eager)
    : simd_(find_simd(simd)), pool_(threads, eager), ops_(pool_, simd_) {}

std::string CpuBackend::description() const {
  return fmt::format("CPU, {} thread{}, {}", pool_.threads(), pool_.threads() == 1 ? "" : "s", simd_.name);
}

Buffer CpuBackend::allocate(size_t bytes) { return allocate_aligned(bytes); }
Buffer CpuBackend::allocate_host(size_t bytes) { return allocate_aligned(bytes); }
std::unique_ptr<Event> CpuBackend::create_event() { return std::make_unique<CpuEvent>(); }

std::unique_ptr<Stream> CpuBackend::create_stream() { return std::make_unique<CpuStream>(&work_done_); }

void CpuBackend::prepack(std::span<const Tensor> tiled) {
  stream_.submit([&] {
    for (const Tensor& w : tiled) ops_.prepack(w);
  });
  stream_.drain();
  stream_.check();
}

std::unique_ptr<Loader> CpuBackend::create_loader() { return std::make_unique<CpuLoader>(); }

void CpuBackend::copy(Stream& stream, void* to, const void* from, size_t bytes) {
  stream.submit([=] { std::memcpy(to, from, bytes); });
}

void CpuBackend::copy_to_host(void* host, const Tensor& source) {
  if (source.bytes() > 0) std::memcpy(host, source.data, source.bytes());
}

void CpuBackend::upload(const Tensor& target, int64_t first, DType from, const void* source, int64_t count) {
  expect(first >= 0 && count >= 0 && first + count <= target.numel(), "upload: outside the tensor");
  std::byte* place = target.data + static_cast<size_t>(first) * size_bytes(target.dtype);
  convert(from, source, target.dtype, place, static_cast<size_t>(count));
}

}  // namespace lfm2
