// channel_ranks ITEMS TIMEOUT STAMPS_FILE: ranks pass ITEMS blocks of numbers on over NcclChannel, each rank adds one,
// and the last rank checks them. Ends as lfm2_stage does: with an exit code and one line.
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "comm/nccl_channel.h"
#include "comm/wait.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_stream.h"

namespace {

using namespace lfm2;

constexpr int64_t kNumbers = 1000;

// Like lfm2_stage's job, this one stays after an error, because transfers may still be using its memory.
class Job {
 public:
  explicit Job(const MpiWorld& world) : world_(world) {
    for (Buffer& buffer : buffers_) buffer = memory_.allocate(kNumbers * sizeof(int32_t));
  }
  void run(int64_t units);

 private:
  const MpiWorld& world_;
  CpuBackend memory_{1};
  CudaStream compute_;
  CudaEvent computed_;
  std::array<Buffer, kBuffers> buffers_;
  std::unique_ptr<Channel> channel_;
};

void Job::run(int64_t units) {
  const int rank = world_.rank();
  const bool first = rank == 0, last = rank + 1 == world_.size();
  channel_ = make_nccl_channel(world_, memory_);
  const Wait wait(world_.watchdog(), [this] { channel_->progress(); });
  for (int64_t unit = 0; unit < units; ++unit) {
    const int buffer = static_cast<int>(unit % kBuffers);
    const Tensor tensor(buffers_[static_cast<size_t>(buffer)].data(), DType::kI32, {kNumbers});
    auto* numbers = tensor.as<int32_t>();
    world_.watchdog().enter({.phase = Phase::kCompute, .unit = unit});
    if (!last)
      wait.until([&] { return channel_->sent(buffer); },
                 {.phase = Phase::kSend, .unit = unit - kBuffers, .peer = rank + 1});
    if (!first) {
      channel_->receive(buffer, tensor);
      channel_->order_after_arrival(buffer, compute_);
      wait.until([&] { return channel_->delivered(buffer); },
                 {.phase = Phase::kReceive, .unit = unit, .peer = rank - 1});
    }
    for (int64_t i = 0; i < kNumbers; ++i) numbers[i] = first ? static_cast<int32_t>(unit + i) : numbers[i] + 1;
    compute_.record(computed_);
    if (!last) channel_->send(buffer, tensor, computed_);
    for (int64_t i = 0; last && i < kNumbers; ++i)
      if (numbers[i] != static_cast<int32_t>(unit + i + rank)) throw Error(ExitCode::kInvalid, "numbers differ");
  }
  for (int buffer = 0; !last && buffer < kBuffers; ++buffer)
    wait.until([&] { return channel_->sent(buffer); }, {.phase = Phase::kSend, .unit = units - 1, .peer = rank + 1});
  world_.barrier(0, "end of a run");
  if (last) fmt::print("{} units through {} ranks\n", units, world_.size());
}

}  // namespace

int main(int argc, char** argv) {
  MpiWorld world(&argc, &argv, {.timeout_seconds = std::atof(argv[2]), .stamps_file = argv[3]});
  Job job(world);
  try {
    job.run(std::atoi(argv[1]));
    return 0;
  } catch (const Error& error) {
    if (world.claim_failure())
      world.say_failure(error.what());
    else
      std::this_thread::sleep_for(std::chrono::milliseconds(world.watchdog().spoke() ? 300 : 2000));
    world.abort(error.code());
  }
}
