// Speed of hidden states from stage to stage, by message size: over the first edge alone, and with all edges busy at
// once.
//     mpirun -np 4 bench_channel [peer] [nccl] [device-buffers] [staged] [cpu] [slots=BYTESxCOUNT]
//     [pieces=BYTESxCOUNT] [message=BYTES] [FILE.jsonl]
// Without a name of a way, all that there are. On a machine without GPUs, or with `cpu`, both ways of MPI between
// memory of the host. With several GPUs beside it the plain peer copy between the first two. Run by hand.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "comm/gpu/peer_channel.h"
#include "comm/mpi_channel.h"
#include "comm/staged_channel.h"
#include "comm/wait.h"
#include "kernels/cpu/cpu_backend.h"
#if LFM2_HAS_CUDA
#include "comm/gpu/nccl_channel.h"
#include "kernels/cuda/common/cuda_check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_stream.h"
#endif

namespace {

using namespace lfm2;

constexpr double kTimeout = 60;  // seconds
constexpr int64_t kHidden = 2048;
constexpr int64_t kTokens[] = {1, 2, 16, 64, 256, 512, 1024, 2048, 4096, 8192};
constexpr int kWarmUp = 4, kRuns = 5;
constexpr int kItems = 60;  // messages of a run; fewer where they are large
constexpr int64_t kRunBytes = int64_t{256} << 20;

struct Arguments {
  std::vector<std::string> ways;
  std::string json;
  bool cpu = false;
  PeerSlots slots;
  StagingPieces pieces;
  size_t message_bytes = 0;  // of device-buffers; 0: what MpiChannel takes
};

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "cpu")
      arguments.cpu = true;
    else if (argument.starts_with("slots="))
      expect(std::sscanf(argv[i], "slots=%zux%u", &arguments.slots.bytes, &arguments.slots.count) == 2,
             "expected slots=BYTESxCOUNT");
    else if (argument.starts_with("pieces="))
      expect(std::sscanf(argv[i], "pieces=%zux%d", &arguments.pieces.bytes, &arguments.pieces.count) == 2,
             "expected pieces=BYTESxCOUNT");
    else if (argument.starts_with("message="))
      expect(std::sscanf(argv[i], "message=%zu", &arguments.message_bytes) == 1, "expected message=BYTES");
    else if (argument.ends_with(".jsonl"))
      arguments.json = argument;
    else
      arguments.ways.emplace_back(argument);
  }
  return arguments;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

#if LFM2_HAS_CUDA
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
#else
double peer_copy_seconds(size_t) { return 0; }
#endif

// Every rank passes `units` buffers on and computes nothing between.
double seconds_per_item(const MpiGroup& ranks, Backend& backend, Channel& channel, const std::vector<Buffer>& buffers,
                        int64_t tokens, int64_t units) {
  const bool first = ranks.rank() == 0, last = ranks.rank() + 1 == ranks.size();
  const Wait wait(ranks.watchdog(), [&] { return channel.progress(); });
  const RankActivity here{.phase = Phase::kCompute};
  const std::unique_ptr<Event> ready = backend.create_event();
  ranks.barrier(0, "run");
  const double start = steady_seconds();
  for (int64_t unit = 0; unit < units; ++unit) {
    const int buffer = static_cast<int>(unit % kBuffers);
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
  ranks.barrier(0, "end of a run");
  return (steady_seconds() - start) / static_cast<double>(units);
}

// What a rank measures with.
struct Machine {
  const MpiWorld& world;
  int devices = 0;  // GPUs; 0: the host's memory
  std::unique_ptr<Backend> backend = {};
  std::vector<Buffer> buffers = {};
  std::ofstream json = {};
};

// Why the way is not there; empty where it is. Ranks that share a GPU have no NCCL.
std::string absence(const Machine& machine, const std::string& way) {
  if (way == "staged") return "";
  if (way == "device-buffers") return machine.devices > 0 ? mpi_staging_reason() : "";
  if (way != "nccl" && way != "peer") return "unknown";
  if (machine.devices == 0) return "needs GPUs";
#if LFM2_HAS_CUDA
  if (way == "peer") return peer_copies_obstacle(machine.world, machine.world, *machine.backend, kTimeout);
#endif
  return machine.devices >= machine.world.local_size() ? "" : "needs a GPU for each rank";
}

std::unique_ptr<Channel> make_channel(Machine& machine, const MpiGroup& ranks, const std::string& way,
                                      const Arguments& arguments) {
  if (way == "staged") return make_staged_channel(ranks, *machine.backend, {}, arguments.pieces);
#if LFM2_HAS_CUDA
  if (way == "peer") return make_peer_channel(ranks, *machine.backend, {}, arguments.slots);
  if (way == "nccl") return make_nccl_channel(ranks, *machine.backend, {});
#endif
  return std::make_unique<MpiChannel>(ranks, *machine.backend, ChannelShape{}, arguments.message_bytes);
}

// One row for each size. `name` is that of the way and the pattern.
void measure(Machine& machine, const MpiGroup& ranks, Channel& channel, const std::string& name) {
  for (const int64_t tokens : kTokens) {
    const int64_t bytes = tokens * kHidden * 2;
    const int64_t items = std::clamp<int64_t>(kRunBytes / bytes, 2 * kBuffers, kItems);
    seconds_per_item(ranks, *machine.backend, channel, machine.buffers, tokens, kWarmUp);
    std::vector<double> runs;
    for (int run = 0; run < kRuns; ++run)
      runs.push_back(seconds_per_item(ranks, *machine.backend, channel, machine.buffers, tokens, items));
    if (ranks.rank() != 0) continue;
    const double each = median(runs), amount = static_cast<double>(bytes);
    const double copy = machine.devices > 1 ? peer_copy_seconds(static_cast<size_t>(bytes)) : 0;
    fmt::print("{:<25} {:>5} tokens {:>9.3f} MB  {:>9.1f} us  {:>6.2f} GB/s", name, tokens, amount * 1e-6, each * 1e6,
               amount / each * 1e-9);
    fmt::print("{}\n", copy > 0
                           ? fmt::format("  peer copy {:>6.1f} GB/s, share {:.2f}", amount / copy * 1e-9, copy / each)
                           : "");
    if (machine.json.is_open())
      machine.json << fmt::format("{{\"bench\": \"channel {} {} tokens\", \"seconds\": {:.9f}, \"share\": {:.4f}}}\n",
                                  name, tokens, each, copy / each);
    std::fflush(stdout);
  }
}

void measure_way(Machine& machine, const std::string& way, const Arguments& arguments) {
  const MpiWorld& world = machine.world;
  if (const std::string reason = absence(machine, way); !reason.empty()) {
    if (world.rank() == 0) fmt::print("{:<25} {}\n", way, reason);
    return;
  }
  if (world.size() > 2) {
    const MpiGroup first_edge(world, world.rank() < 2 ? 0 : 1);
    if (world.rank() < 2)
      measure(machine, first_edge, *make_channel(machine, first_edge, way, arguments), way + " one edge");
    world.barrier(kTimeout, "other ranks");
  }
  measure(machine, world, *make_channel(machine, world, way, arguments), way);
}

int run(const MpiWorld& world, const Arguments& arguments) {
  Machine machine{.world = world};
#if LFM2_HAS_CUDA
  if (!arguments.cpu) machine.devices = cuda_device_count();
  if (machine.devices > 0) machine.backend = make_cuda_backend(world.local_rank() % machine.devices);
#endif
  if (!machine.backend) machine.backend = std::make_unique<CpuBackend>(1);
  const auto largest = static_cast<size_t>(std::end(kTokens)[-1] * kHidden) * 2;
  for (int buffer = 0; buffer < kBuffers; ++buffer) machine.buffers.push_back(machine.backend->allocate(largest));
  if (!arguments.json.empty() && world.rank() == 0) machine.json.open(arguments.json, std::ios::app);
  std::vector<std::string> ways = arguments.ways;
  if (ways.empty()) ways = {"device-buffers", "staged"};
  if (arguments.ways.empty() && machine.devices > 0) ways.insert(ways.begin(), {"peer", "nccl"});
  if (world.rank() == 0)
    fmt::print("{} ranks, {}, {}\n", world.size(), machine.backend->description(), mpi_library_version());
  for (const std::string& way : ways) measure_way(machine, way, arguments);
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  MpiWorld world(&argc, &argv, {.timeout_seconds = kTimeout, .stamps_file = "bench_channel.stall.txt"});
  if (world.size() < 2) {
    std::puts("bench_channel: needs at least two ranks");
    return 77;
  }
  return run(world, parse(argc, argv));
} catch (const std::exception& error) {
  fmt::print(stderr, "bench_channel: {}\n", error.what());
  MPI_Abort(MPI_COMM_WORLD, 70);
}
