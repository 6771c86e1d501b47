// The CPU backend and MPI transport; a build with CUDA adds its own.
#include "stage/backend_choice.h"

#include <cstdio>

#include "comm/mpi_channel.h"
#include "kernels/cpu/cpu_backend.h"

namespace lfm2 {

std::unique_ptr<Backend> make_backend(const Options& options, const MpiWorld& world) {
  if (options.device == DeviceChoice::kCuda)
    throw Error(ExitCode::kUnavailable,
                "--device cuda: this program was built without CUDA, expected --device cpu or auto");
  const int threads = options.threads > 0 ? options.threads : world.fair_share_of_processors();
  return std::make_unique<CpuBackend>(threads);
}

std::unique_ptr<Channel> make_channel(const Options& options, const MpiWorld& world) {
  if (options.transport == TransportChoice::kNccl)
    throw Error(ExitCode::kUnavailable,
                "--transport nccl: this program was built without NCCL, expected --transport mpi or auto");
  if (world.size() == 1) return nullptr;
  const int previous = world.rank() == 0 ? MpiChannel::kNoPeer : world.rank() - 1;
  const int next = world.rank() + 1 == world.size() ? MpiChannel::kNoPeer : world.rank() + 1;
  return std::make_unique<MpiChannel>(world.comm(), previous, next);
}

std::string transport_name(const MpiWorld& world) { return world.size() == 1 ? "no transport" : "MPI"; }

uint64_t available_host_memory() {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/proc/meminfo", "r"), &std::fclose);
  char line[128];
  unsigned long long kilobytes = 0;
  while (file && std::fgets(line, sizeof line, file.get()) != nullptr)
    if (std::sscanf(line, "MemAvailable: %llu kB", &kilobytes) == 1) return kilobytes * 1024;
  return 0;
}

}  // namespace lfm2
