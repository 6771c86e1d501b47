// Each edge has a ring of slots in the memory of the receiver. The sender copies a piece of a micro-batch into the next
// slot, and then sets the receiver's flag `full` to the number of pieces so far. The receiver copies the piece to its
// place and sets the sender's flag `free`. Each side's stream waits for the flag in its own memory.
#include "comm/gpu/peer_channel.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <utility>

#include "comm/gpu/gpu_channel.h"
#include "kernels/cuda/common/cuda_check.h"
#include "kernels/cuda/peer_memory.h"

namespace lfm2 {

namespace {

constexpr auto kMaxPeerFarewell = std::chrono::seconds(1);
constexpr const char* kMeeting = "memory of GPUs";

size_t all_bytes(PeerSlots slots) { return slots.bytes * slots.count; }
uint32_t* flag_in(std::byte* memory) { return reinterpret_cast<uint32_t*>(memory); }

// One side of an edge. `own` is the memory that the other side writes: the sender's flag, or the receiver's slots
// followed by its flag.
class PeerEdge : public GpuEdge {
 public:
  PeerEdge(int peer, int buffers, PeerSlots slots, Buffer own, const PeerHandle& other)
      : GpuEdge(peer, buffers), slots_(slots), own_(std::move(own)), other_handle_(other) {}
  ~PeerEdge() override { drain(); }
  void start() override { other_.emplace(other_handle_); }
  void close() override {
    drain();
    other_.reset();
  }

 protected:
  // Calls `move` for each piece, with its place in the tensor, its slot and the number of pieces before it.
  template <class Move>
  void for_pieces(const Tensor& tensor, const Move& move) {
    for (size_t at = 0; at < tensor.bytes(); at += slots_.bytes, ++pieces_)
      move(tensor.data + at, std::min(slots_.bytes, tensor.bytes() - at), (pieces_ % slots_.count) * slots_.bytes,
           pieces_);
  }
  const PeerSlots slots_;
  std::byte* own() const { return own_.data(); }
  std::byte* other() const { return other_->data(); }

 private:
  Buffer own_;
  PeerHandle other_handle_;
  std::optional<PeerMemory> other_;
  uint32_t pieces_ = 0;  // that went over the edge, modulo 2^32
};

class PeerSender final : public PeerEdge {
  using PeerEdge::PeerEdge;
  void enqueue(const Tensor& tensor) override {
    for_pieces(tensor, [&](const std::byte* from, size_t bytes, size_t slot, uint32_t before) {
      wait_for_flag(stream(), flag_in(own()), before + 1 - slots_.count);
      CUDA_CHECK(cudaMemcpyAsync(other() + slot, from, bytes, cudaMemcpyDefault, stream()));
      write_flag(stream(), flag_in(other() + all_bytes(slots_)), before + 1);
    });
  }
};

class PeerReceiver final : public PeerEdge {
  using PeerEdge::PeerEdge;
  void enqueue(const Tensor& tensor) override {
    for_pieces(tensor, [&](std::byte* into, size_t bytes, size_t slot, uint32_t before) {
      wait_for_flag(stream(), flag_in(own() + all_bytes(slots_)), before + 1);
      CUDA_CHECK(cudaMemcpyAsync(into, own() + slot, bytes, cudaMemcpyDefault, stream()));
      write_flag(stream(), flag_in(other()), before + 1);
    });
  }
};

class PeerChannel final : public GpuChannel {
 public:
  PeerChannel(const MpiGroup& group, Backend& backend, std::unique_ptr<GpuEdge> previous, std::unique_ptr<GpuEdge> next)
      : GpuChannel(group, backend, std::move(previous), std::move(next)) {
    MPI_CHECK(MPI_Comm_dup(group.comm(), &comm_));
  }
  PeerChannel(const PeerChannel&) = delete;
  PeerChannel& operator=(const PeerChannel&) = delete;
  ~PeerChannel() override;

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

// A rank frees its memory once its neighbours have closed it, and leaks it if a neighbour does not arrive here in time.
// Transfers in flight are waited for without a deadline, as by the end of any stream; the watchdog detects a hang.
PeerChannel::~PeerChannel() {
  close_edges();
  const auto until = std::chrono::steady_clock::now() + kMaxPeerFarewell;
  MPI_Request farewell = MPI_REQUEST_NULL;
  int done = 0;
  if (MPI_Ibarrier(comm_, &farewell) == MPI_SUCCESS)
    while (done == 0 && std::chrono::steady_clock::now() < until) {
      if (MPI_Test(&farewell, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) break;
      sched_yield();
    }
  if (done == 0)
    abandon_edges();
  else
    MPI_Comm_free(&comm_);
}

Buffer zeroed(Backend& backend, size_t bytes) {
  Buffer buffer = backend.allocate(bytes);
  CUDA_CHECK(cudaMemset(buffer.data(), 0, bytes));
  CUDA_CHECK(cudaDeviceSynchronize());
  return buffer;
}

// The streams that a rank uses at the same time: for computation, receives, sends, and copies of a step's arrays or of
// results.
constexpr int kStreams = 4;

// A stream that waits for a flag blocks the streams that share its hardware queue. With fewer queues than streams a
// rank could not send before it has received, and a ring of such ranks would deadlock.
void expect_independent_streams() {
  const char* const kQueues = "CUDA_DEVICE_MAX_CONNECTIONS";
  const char* queues = std::getenv(kQueues);
  if (queues != nullptr && std::atoi(queues) < kStreams)
    throw Error(ExitCode::kUnavailable, fmt::format("{} is {}, expected at least {}, one for each stream of a rank",
                                                    kQueues, queues, kStreams));
}

// The handle of each rank's memory goes to the next one, round the group.
PeerHandle handle_of_previous(const MpiGroup& group, PeerHandle mine, double timeout_seconds) {
  PeerHandle previous{};
  for (int sender = 0; sender < group.size(); ++sender) {
    const int receiver = (sender + 1) % group.size();
    PeerHandle& handle = group.rank() == sender ? mine : previous;
    group.pass(handle.data(), handle.size(), sender, receiver, timeout_seconds, kMeeting);
  }
  return previous;
}

}  // namespace

// Each rank writes a number into the memory of the previous rank, which checks that it arrived.
std::string peer_copies_obstacle(const MpiGroup& job, const MpiGroup& pipeline, Backend& backend,
                                 double timeout_seconds) {
  std::string obstacle;
  // Whether all ranks of the pipeline have succeeded so far.
  const auto all_can = [&](const auto& work) {
    try {
      work();
    } catch (const Error& error) {
      obstacle = fmt::format("rank {}: {}", job.rank(), error.what());
    }
    return pipeline.all_ranks(obstacle.empty(), timeout_seconds);
  };
  const auto number_of = [](int rank) { return static_cast<uint32_t>(rank) + 1; };
  Buffer own;
  PeerHandle handle{}, handle_before{};
  bool can = all_can([&] {
    expect_independent_streams();
    own = zeroed(backend, sizeof(uint32_t));
    handle = peer_handle(own.data());
  });
  if (can && !pipeline.on_one_host()) {
    obstacle = "ranks are on several hosts";
    can = false;
  }
  if (can) {
    handle_before = handle_of_previous(pipeline, handle, timeout_seconds);
    can = all_can([&] {
      CudaStream stream;
      const PeerMemory before(handle_before);
      write_flag(stream.native(), flag_in(before.data()), number_of(pipeline.rank()));
      stream.drain();
      stream.check();
    });
  }
  if (can)
    all_can([&] {
      uint32_t found = 0;
      CUDA_CHECK(cudaMemcpy(&found, own.data(), sizeof found, cudaMemcpyDefault));
      if (found != number_of((pipeline.rank() + 1) % pipeline.size()))
        throw Error(ExitCode::kUnavailable, "what the next GPU writes into this one's memory does not arrive");
    });
  std::string of_all;
  for (const std::string& of_rank : job.gather(obstacle, 0, timeout_seconds, kMeeting))
    if (of_all.empty()) of_all = of_rank;
  return job.broadcast(of_all, 0, timeout_seconds, kMeeting);
}

std::unique_ptr<Channel> make_peer_channel(const MpiGroup& group, Backend& backend, const ChannelShape& shape,
                                           PeerSlots slots) {
  const int rank = group.rank(), ranks = group.size(), first = group.watchdog().rank() - rank;
  std::unique_ptr<GpuEdge> from, to;
  // The two sides of an edge exchange handles of their memory, one edge after another.
  for (int sender = 0; sender < ranks; ++sender) {
    const std::optional<int> receiver = next_rank(sender, ranks, shape.ring);
    if (!receiver || (rank != sender && rank != *receiver)) continue;
    Buffer own = zeroed(backend, (rank == sender ? 0 : all_bytes(slots)) + sizeof(uint32_t));
    PeerHandle of_sender = peer_handle(own.data()), of_receiver = of_sender;
    group.pass(of_sender.data(), of_sender.size(), sender, *receiver, 0, kMeeting);
    group.pass(of_receiver.data(), of_receiver.size(), *receiver, sender, 0, kMeeting);
    if (rank == sender)
      to = std::make_unique<PeerSender>(first + *receiver, shape.buffers, slots, std::move(own), of_receiver);
    else
      from = std::make_unique<PeerReceiver>(first + sender, shape.buffers, slots, std::move(own), of_sender);
  }
  return connect(std::make_unique<PeerChannel>(group, backend, std::move(from), std::move(to)));
}

}  // namespace lfm2
