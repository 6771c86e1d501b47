// Speed of hidden states from stage to stage, by message size, with all edges busy at once; beside it the plain peer
// copy between the first two GPUs. mpirun -np 4 bench_channel [nccl|mpi] [FILE.jsonl]. Run by hand on a machine with
// GPUs.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "comm/mpi_channel.h"
#include "comm/nccl_channel.h"
#include "comm/wait.h"
#include "kernels/cuda/common/cuda_check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_stream.h"

namespace {

using namespace lfm2;

constexpr double kTimeout = 60;  // seconds
constexpr int64_t kHidden = 2048;
constexpr int kWarmUp = 10, kItems = 60, kRuns = 5;

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// Seconds for one copy of `bytes` from GPU 0 to GPU 1 by the copy engine.
double peer_copy_seconds(size_t bytes) {
  void* there = nullptr;
  void* here = nullptr;
  CUDA_CHECK(cudaSetDevice(1));
  CUDA_CHECK(cudaMalloc(&there, bytes));
  CUDA_CHECK(cudaSetDevice(0));
  const cudaError_t peer = cudaDeviceEnablePeerAccess(1, 0);
  if (peer != cudaSuccess && peer != cudaErrorPeerAccessAlreadyEnabled) CUDA_CHECK(peer);
  static_cast<void>(cudaGetLastError());
  CUDA_CHECK(cudaMalloc(&here, bytes));
  std::vector<double> seconds;
  {
    CudaStream stream;
    CudaTimingEvent start, end;
    for (int run = 0; run <= kRuns; ++run) {
      CUDA_CHECK(cudaEventRecord(start.native(), stream.native()));
      for (int i = 0; i < kItems; ++i) CUDA_CHECK(cudaMemcpyPeerAsync(there, 1, here, 0, bytes, stream.native()));
      CUDA_CHECK(cudaEventRecord(end.native(), stream.native()));
      end.wait();
      float milliseconds = 0;
      CUDA_CHECK(cudaEventElapsedTime(&milliseconds, start.native(), end.native()));
      if (run > 0) seconds.push_back(static_cast<double>(milliseconds) * 1e-3 / kItems);
    }
  }
  CUDA_CHECK(cudaFree(here));
  CUDA_CHECK(cudaFree(there));
  return median(seconds);
}

// Every rank passes `units` buffers on and computes nothing between.
double seconds_per_item(const MpiWorld& world, Backend& backend, Channel& channel, const std::vector<Buffer>& buffers,
                        int64_t tokens, int units) {
  const bool first = world.rank() == 0, last = world.rank() + 1 == world.size();
  const Wait wait(world.watchdog(), [&] { channel.progress(); });
  const Place here{.phase = Phase::kCompute};
  const std::unique_ptr<Event> ready = backend.create_event();
  world.barrier(0, "run");
  const double start = steady_seconds();
  for (int unit = 0; unit < units; ++unit) {
    const int buffer = unit % kBuffers;
    const Tensor tensor(buffers[static_cast<size_t>(buffer)].data(), DType::kBf16, {tokens, kHidden});
    wait.until([&] { return last || channel.sent(buffer); }, here);
    if (!first) {
      channel.receive(buffer, tensor);
      wait.until([&] { return channel.arrived(buffer); }, here);
      channel.order_after_arrival(buffer, backend.compute());
    }
    backend.compute().record(*ready);
    if (!last) channel.send(buffer, tensor, *ready);
    if (last) wait.until([&] { return ready->done(); }, here);
  }
  for (int buffer = 0; buffer < kBuffers; ++buffer) wait.until([&] { return last || channel.sent(buffer); }, here);
  backend.compute().drain();
  world.barrier(0, "end of a run");
  return (steady_seconds() - start) / units;
}

}  // namespace

int main(int argc, char** argv) try {
  MpiWorld world(&argc, &argv, {.timeout_seconds = kTimeout, .stamps_file = "bench_channel.stall.txt"});
  const std::string transport = argc > 1 ? argv[1] : "nccl";
  const int devices = cuda_device_count();
  if (devices == 0 || world.size() < 2) {
    std::puts("bench_channel: needs a GPU and at least two ranks");
    return 77;
  }
  std::ofstream json;
  if (argc > 2 && world.rank() == 0) json.open(argv[2], std::ios::app);
  const std::unique_ptr<Backend> backend = make_cuda_backend(world.local_rank() % devices);
  constexpr int64_t kMaxTokens = 8192;
  const size_t buffer_bytes = static_cast<size_t>(kMaxTokens * kHidden) * 2;
  std::vector<Buffer> buffers;
  for (int buffer = 0; buffer < kBuffers; ++buffer) buffers.push_back(backend->allocate(buffer_bytes));
  std::unique_ptr<Channel> channel;
  if (transport == "nccl")
    channel = make_nccl_channel(world, *backend, {});
  else
    channel = std::make_unique<MpiChannel>(world, *backend, ChannelShape{.buffer_bytes = buffer_bytes});
  for (const int64_t tokens : {1, 16, 256, 1024, 2048, 4096, 8192}) {
    seconds_per_item(world, *backend, *channel, buffers, tokens, kWarmUp);
    std::vector<double> seconds;
    for (int run = 0; run < kRuns; ++run)
      seconds.push_back(seconds_per_item(world, *backend, *channel, buffers, tokens, kItems));
    if (world.rank() != 0) continue;
    const auto bytes = static_cast<double>(tokens * kHidden * 2);
    const double each = median(seconds);
    const double copy = devices > 1 ? peer_copy_seconds(static_cast<size_t>(bytes)) : 0;
    fmt::print("{:<5} {:>5} tokens {:>9.3f} MB  {:>9.1f} us  {:>6.1f} GB/s  peer copy {:>6.1f} GB/s, share {:.2f}\n",
               transport, tokens, bytes * 1e-6, each * 1e6, bytes / each * 1e-9, copy > 0 ? bytes / copy * 1e-9 : 0,
               copy / each);
    if (json.is_open())
      json << fmt::format("{{\"bench\": \"channel {} {} tokens\", \"seconds\": {:.9f}, \"share\": {:.4f}}}\n",
                          transport, tokens, each, copy / each);
    std::fflush(stdout);
  }
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "bench_channel: {}\n", error.what());
  MPI_Abort(MPI_COMM_WORLD, 70);
}
