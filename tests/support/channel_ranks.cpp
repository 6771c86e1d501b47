// channel_ranks TRANSPORT ITEMS TIMEOUT STAMPS_FILE [ring|leave|leave-send|leave-receive]: ranks pass ITEMS blocks of
// numbers on over NCCL, PeerChannel, or MpiChannel or StagedChannel (TRANSPORT is nccl, peer or mpi), each rank adds
// one, and the last rank checks them; in a ring it sends them to the first rank, which checks them. Ends as lfm2_stage
// does: with an exit code and one line. With leave..., a rank begins to send or to receive, or neither, while its
// neighbour does not, and destroys its channel before the end.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/gpu/nccl_channel.h"
#include "comm/gpu/peer_channel.h"
#include "comm/mpi_channel.h"
#include "comm/staged_channel.h"
#include "comm/wait.h"
#include "fake_cuda.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_stream.h"

namespace {

using namespace lfm2;

constexpr int kRingBuffers = 4;                               // of the first rank: two are sent from, two received into
constexpr int64_t kNumbers = 100000;                          // so many that MPI does not send them at once
constexpr StagingPieces kPieces{.bytes = 30000, .count = 4};  // some fourteen for each block, the last one shorter
constexpr PeerSlots kPeerSlots{.bytes = kPieces.bytes, .count = 4};

// The CPU, but for what it says of its memory: MPI is to treat it as a GPU's.
class DeviceBackend : public CpuBackend {
 public:
  DeviceBackend() : CpuBackend(1) {}
  Buffer allocate(size_t bytes) override {
    return {fake_device_memory(bytes), bytes, [](void* data) {
              ++device_buffers_freed;
              free_fake_device_memory(data);
            }};
  }
  Buffer allocate_host(size_t bytes) override {
    return {std::malloc(bytes), bytes, [](void* data) {
              ++host_buffers_freed;
              std::free(data);
            }};
  }
  static inline int host_buffers_freed = 0, device_buffers_freed = 0;
  bool memory_is_host_memory() const override { return false; }
};

// Like lfm2_stage's job, this one stays after an error, because transfers may still be using its memory.
class Job {
 public:
  Job(const MpiWorld& world, std::string_view transport, bool ring)
      : world_(world),
        transport_(transport),
        shape_{.buffers = ring && world.rank() == 0 ? kRingBuffers : kBuffers, .ring = ring},
        buffers_(static_cast<size_t>(shape_.buffers)) {
    for (Buffer& buffer : buffers_) buffer = memory_.allocate(kNumbers * sizeof(int32_t));
    if (over_streams())
      computed_ = std::make_unique<CudaEvent>();
    else
      computed_ = memory_.create_event();
  }
  void run(int64_t units);
  void leave(std::string_view how);

 private:
  bool over_streams() const { return transport_ != "mpi"; }
  Stream& compute() { return over_streams() ? cuda_ : memory_.compute(); }
  void connect();
  Tensor numbers_in(int buffer) const {
    return {buffers_[static_cast<size_t>(buffer)].data(), DType::kI32, {kNumbers}};
  }
  void receive(const Wait& wait, int64_t unit, int buffer, int from);
  void check(int buffer, int64_t first) const;

  const MpiWorld& world_;
  const std::string_view transport_;
  const ChannelShape shape_;
  DeviceBackend memory_;
  CudaStream cuda_;
  std::unique_ptr<Event> computed_;
  std::vector<Buffer> buffers_;
  std::unique_ptr<Channel> channel_;
};

void Job::connect() {
  if (transport_ == "nccl") {
    channel_ = make_nccl_channel(world_, memory_, shape_);
    return;
  }
  if (transport_ == "peer") {
    const std::string obstacle = peer_copies_obstacle(world_, world_, memory_, 0);
    if (!obstacle.empty()) throw Error(ExitCode::kUnavailable, obstacle);
    channel_ = make_peer_channel(world_, memory_, shape_, kPeerSlots);
    return;
  }
  const std::string reason = mpi_staging_reason(world_);
  if (reason.empty())
    channel_ = std::make_unique<MpiChannel>(world_, memory_, shape_);
  else
    channel_ = make_staged_channel(world_, memory_, shape_, kPieces);
  if (world_.rank() == 0) fmt::print("{}\n", reason.empty() ? "device buffers" : "staged: " + reason);
  std::fflush(stdout);  // before the last rank's line
}

void Job::receive(const Wait& wait, int64_t unit, int buffer, int from) {
  const RankActivity here{.phase = Phase::kReceive, .unit = unit, .peer = from};
  channel_->receive(buffer, numbers_in(buffer));
  wait.until([&] { return channel_->arrived(buffer); }, here);
  channel_->order_after_arrival(buffer, compute());
  compute().record(*computed_);
  wait.until([&] { return channel_->delivered(buffer) && computed_->done(); }, here);
}

void Job::check(int buffer, int64_t first) const {
  const auto* numbers = numbers_in(buffer).as<int32_t>();
  for (int64_t i = 0; i < kNumbers; ++i)
    if (numbers[i] != static_cast<int32_t>(first + i)) throw Error(ExitCode::kInvalid, "numbers differ");
}

void Job::leave(std::string_view how) {
  connect();
  if (world_.rank() != (how == "leave-receive" ? 1 : 0)) return world_.barrier(0, "another rank's end");
  compute().record(*computed_);
  if (how == "leave-send") channel_->send(0, numbers_in(0), *computed_);
  if (how == "leave-receive") channel_->receive(0, numbers_in(0));
  for (int i = 0; i < 100; ++i) {
    channel_->progress();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const int freed_before = DeviceBackend::device_buffers_freed;
  channel_.reset();
  fmt::print("{} of {} pieces freed\n{} buffers of the device freed\n", DeviceBackend::host_buffers_freed,
             kPieces.count, DeviceBackend::device_buffers_freed - freed_before);
  std::fflush(stdout);
  throw Error(ExitCode::kLost, "left");
}

void Job::run(int64_t units) {
  const int rank = world_.rank(), ranks = world_.size();
  const bool first = rank == 0, last = rank + 1 == ranks, sends = !last || shape_.ring;
  connect();
  const Wait wait(world_.watchdog(), [this] { return channel_->progress(); });
  const auto wait_until_sent = [&](int64_t unit, int buffer) {
    if (sends)
      wait.until([&] { return channel_->sent(buffer); },
                 {.phase = Phase::kSend, .unit = unit, .peer = (rank + 1) % ranks});
  };
  for (int64_t unit = 0; unit < units; ++unit) {
    const int buffer = static_cast<int>(unit % kBuffers);
    auto* numbers = numbers_in(buffer).as<int32_t>();
    world_.watchdog().enter({.phase = Phase::kCompute, .unit = unit});
    wait_until_sent(unit - kBuffers, buffer);
    if (!first) receive(wait, unit, buffer, rank - 1);
    for (int64_t i = 0; i < kNumbers; ++i) numbers[i] = first ? static_cast<int32_t>(unit + i) : numbers[i] + 1;
    compute().record(*computed_);
    if (sends) channel_->send(buffer, numbers_in(buffer), *computed_);
    if (last) check(buffer, unit + rank);
    if (!first || !shape_.ring) continue;
    receive(wait, unit, kBuffers + buffer, ranks - 1);
    check(kBuffers + buffer, unit + ranks - 1);
  }
  for (int buffer = 0; buffer < kBuffers; ++buffer) wait_until_sent(units - 1, buffer);
  world_.barrier(0, "end of a run");
  if (last) fmt::print("{} units through {} ranks\n", units, ranks);
}

}  // namespace

int main(int argc, char** argv) {
  MpiWorld world(&argc, &argv, {.timeout_seconds = std::atof(argv[3]), .stamps_file = argv[4]});
  const std::string_view mode = argc > 5 ? argv[5] : "";
  Job job(world, argv[1], mode == "ring");
  try {
    if (mode.starts_with("leave"))
      job.leave(mode);
    else
      job.run(std::atoi(argv[2]));
    return 0;
  } catch (const Error& error) {
    if (world.claim_failure())
      world.say_failure(error.what());
    else
      std::this_thread::sleep_for(std::chrono::milliseconds(world.watchdog().spoke() ? 300 : 2000));
    world.abort(error.code());
  }
}
