// The channel over ncclSend and ncclRecv, on streams of its own. Every wait of the program polls progress(), which
// looks for asynchronous errors of NCCL.
#include "comm/nccl_channel.h"

#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "comm/wait.h"
#include "kernels/cuda/common/cuda_check.h"
#include "kernels/cuda/cuda_stream.h"

namespace lfm2 {

namespace {

// On NVLink two thread blocks move 35 GB/s, four 67 GB/s, NCCL's default number 300 GB/s. Each block takes a
// multiprocessor away from the matrix products, those of a receive from when it is enqueued, mostly a whole micro-batch
// before the hidden states come, so that many are left alone by the products. Those of a send are needed for a moment:
// to leave as many to sends was tried, and 2 to 13 % slower (four H200, in turn).
constexpr int kMaxThreadBlocks = 4;
constexpr auto kMaxAbortTime = std::chrono::seconds(1);
constexpr int kUrgent = -5;  // priority of the streams: transfers are short, and other ranks wait for them

void check_nccl(ncclResult_t result, ncclComm_t comm, std::string_view call) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  const char* detail = ncclGetLastError(comm);
  throw Error(ExitCode::kLost, fmt::format("{} failed: {}{}{}", call, ncclGetErrorString(result),
                                           detail[0] == '\0' ? "" : ": ", detail));
}
#define NCCL_CHECK(comm, call) check_nccl((call), (comm), #call)

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::kBf16:
      return ncclBfloat16;
    case DType::kF16:
      return ncclFloat16;
    case DType::kF32:
      return ncclFloat32;
    case DType::kI32:
      break;
  }
  return ncclInt32;
}

// The communicator of an edge: rank 0 of it sends, rank 1 receives.
class Edge {
 public:
  static constexpr int kSender = 0, kReceiver = 1;

  // `rank` is kSender or kReceiver; `peer` the other side's rank in the job.
  Edge(int rank, int peer, int buffers)
      : rank_(rank),
        peer_(peer),
        stream_(kUrgent),
        timing_(static_cast<size_t>(buffers)),
        in_flight_(static_cast<size_t>(buffers)) {}
  Edge(const Edge&) = delete;
  Edge& operator=(const Edge&) = delete;
  ~Edge() {
    if (comm_ != nullptr) ncclCommDestroy(comm_);
  }

  void start(const ncclUniqueId& id) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.maxCTAs = kMaxThreadBlocks;
    check_nccl(ncclCommInitRankConfig(&comm_, 2, id, rank_, &config), nullptr, "ncclCommInitRankConfig");
  }
  // Ends the edge without the other side. Waits no longer than kMaxAbortTime for NCCL.
  void abort() {
    if (comm_ == nullptr) return;
    const auto aborted = std::make_shared<std::promise<void>>();
    std::thread([comm = comm_, aborted] {
      ncclCommAbort(comm);
      aborted->set_value();
    }).detach();
    aborted->get_future().wait_for(kMaxAbortTime);
  }

  // False while NCCL is busy in the background. Throws the error of either side of the edge.
  bool settled() {
    ncclResult_t state = ncclSuccess;
    check_nccl(ncclCommGetAsyncError(comm_, &state), comm_, "ncclCommGetAsyncError");
    if (state == ncclSuccess || state == ncclInProgress) return state == ncclSuccess;
    check_nccl(state, comm_, fmt::format("NCCL {} rank {}", rank_ == kSender ? "to" : "from", peer_));
    return true;
  }

  // Starts a send or receive. At its first use NCCL connects the two sides in the background (ncclInProgress). Events
  // that are recorded on the stream before that is done do not cover the transfer, so this waits for it.
  // `after`, where there is one, is what the transfer waits for on the GPU.
  void transfer(int buffer, const Tensor& tensor, const Wait& wait, Event* after = nullptr) {
    const auto count = static_cast<size_t>(tensor.numel());
    const Timing& timing = timing_[static_cast<size_t>(buffer)];
    expect(done(buffer), "NcclChannel: the buffer is in flight");
    stream_.clock().follow();
    if (after != nullptr) stream_.wait(*after);
    CUDA_CHECK(cudaEventRecord(timing.start.native(), stream_.native()));
    if (rank_ == kSender)
      NCCL_CHECK(comm_, ncclSend(tensor.data, count, nccl_type(tensor.dtype), kReceiver, comm_, stream_.native()));
    else
      NCCL_CHECK(comm_, ncclRecv(tensor.data, count, nccl_type(tensor.dtype), kSender, comm_, stream_.native()));
    settle(wait);
    CUDA_CHECK(cudaEventRecord(timing.end.native(), stream_.native()));
    in_flight_[static_cast<size_t>(buffer)] = 1;
  }
  void settle(const Wait& wait) {
    wait.until([&] { return settled(); }, connecting());
  }
  Place connecting() const { return {.phase = Phase::kConnect, .peer = peer_}; }
  bool done(int buffer) {
    const auto at = static_cast<size_t>(buffer);
    if (in_flight_[at] == 0) return true;
    const Timing& timing = timing_[at];
    if (!timing.end.done()) return false;
    finished_.push_back({0, stream_.clock().seconds_of(timing.start), stream_.clock().seconds_of(timing.end)});
    in_flight_[at] = 0;
    return true;
  }
  // Sorted by their begin, because the buffers are not looked at in the order of use.
  std::vector<Span> take_finished() {
    std::sort(finished_.begin(), finished_.end(), [](const Span& a, const Span& b) { return a.start < b.start; });
    return std::exchange(finished_, {});
  }
  cudaEvent_t end_of(int buffer) const { return timing_[static_cast<size_t>(buffer)].end.native(); }
  CudaStream& stream() { return stream_; }

 private:
  struct Timing {
    CudaTimingEvent start, end;
  };

  int rank_, peer_;  // rank_ in the edge's communicator; peer_ in the job
  ncclComm_t comm_ = nullptr;
  CudaStream stream_;
  std::vector<Timing> timing_;   // [buffers]
  std::vector<char> in_flight_;  // [buffers]: whether a transfer of the buffer has not been seen to end
  std::vector<Span> finished_;
};

class NcclChannel : public Channel {
 public:
  NcclChannel(const MpiGroup& group, Backend& backend, const ChannelShape& shape)
      : shape_(shape),
        last_(group.rank() + 1 == group.size()),
        wait_(group.watchdog(), [] { return false; }),
        backend_(backend),
        element_(backend.allocate(2 * sizeof(float))) {}
  NcclChannel(const NcclChannel&) = delete;
  NcclChannel& operator=(const NcclChannel&) = delete;
  // Either side may wait for the other here, too: all ranks end as senders first, the last one as the receiver.
  ~NcclChannel() override {
    if (last_) previous_.reset();
  }

  void connect(const MpiGroup& group);
  void abort() {
    for (Edge* edge : {previous_.get(), next_.get()})
      if (edge != nullptr) edge->abort();
  }

  void receive(int buffer, const Tensor& into) override { previous_->transfer(buffer, into, wait_); }
  bool arrived(int) override { return true; }  // the compute stream waits, and the host does not have to
  bool delivered(int buffer) override { return previous_->done(buffer); }
  void order_after_arrival(int buffer, Stream& compute) override {
    CUDA_CHECK(cudaStreamWaitEvent(dynamic_cast<CudaStream&>(compute).native(), previous_->end_of(buffer)));
  }
  void send(int buffer, const Tensor& from, Event& computed) override {
    next_->transfer(buffer, from, wait_, &computed);
  }
  bool sent(int buffer) override { return next_->done(buffer); }
  bool progress() override {
    if (previous_) previous_->settled();
    if (next_) next_->settled();
    return false;
  }
  Transfers take_finished() override {
    for (int buffer = 0; buffer < shape_.buffers; ++buffer) {
      if (previous_) previous_->done(buffer);
      if (next_) next_->done(buffer);
    }
    return {.sent = next_ ? next_->take_finished() : std::vector<Span>(),
            .received = previous_ ? previous_->take_finished() : std::vector<Span>()};
  }

 private:
  ChannelShape shape_;
  bool last_;  // the last rank of the pipeline
  Wait wait_;
  Backend& backend_;
  Buffer element_;  // two fp32 elements, for the first transfers
  std::unique_ptr<Edge> previous_, next_;
};

void NcclChannel::connect(const MpiGroup& group) {
  const int rank = group.rank(), ranks = group.size(), first = group.watchdog().rank() - rank;
  // Rank r makes the id of the edge to the next one. All ranks take part in all broadcasts, which is simple and fast
  // enough.
  std::vector<ncclUniqueId> ids(static_cast<size_t>(ranks));
  for (int sender = 0; sender < ranks; ++sender) {
    if (!next_rank(sender, ranks, shape_.ring)) continue;
    ncclUniqueId& id = ids[static_cast<size_t>(sender)];
    if (rank == sender) check_nccl(ncclGetUniqueId(&id), nullptr, "ncclGetUniqueId");
    group.broadcast(&id, sizeof id, sender, 0, "NCCL ids");
  }
  if (const std::optional<int> previous = previous_rank(rank, ranks, shape_.ring)) {
    previous_ = std::make_unique<Edge>(Edge::kReceiver, first + *previous, shape_.buffers);
    previous_->start(ids[static_cast<size_t>(*previous)]);
    backend_.leave_to_transfers(kMaxThreadBlocks);
  }
  if (const std::optional<int> next = next_rank(rank, ranks, shape_.ring)) {
    next_ = std::make_unique<Edge>(Edge::kSender, first + *next, shape_.buffers);
    next_->start(ids[static_cast<size_t>(rank)]);
  }
  const auto wait_for_edges = [&](const auto& done) {
    for (Edge* edge : {previous_.get(), next_.get()})
      if (edge != nullptr)
        wait_.until(
            [&] {
              progress();  // the other edge may be what the neighbours wait for
              return done(*edge);
            },
            edge->connecting());
  };
  wait_for_edges([](Edge& edge) { return edge.settled(); });
  // Sends one element over each edge, so that the first micro-batch finds the edge connected. Either side of an edge
  // waits for the other here. The last rank begins with the receiver's side, so that in a ring not all wait as senders.
  const auto send = [&] {
    if (next_) next_->transfer(0, Tensor(element_.data(), DType::kF32, {1}), wait_);
  };
  if (!last_) send();
  if (previous_) previous_->transfer(0, Tensor(element_.data() + sizeof(float), DType::kF32, {1}), wait_);
  if (last_) send();
  wait_for_edges([](Edge& edge) { return edge.settled() && edge.done(0); });
}

}  // namespace

std::string nccl_version() {
  int version = 0;
  check_nccl(ncclGetVersion(&version), nullptr, "ncclGetVersion");
  return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

std::unique_ptr<Channel> make_nccl_channel(const MpiGroup& group, Backend& backend, const ChannelShape& shape) {
  auto channel = std::make_unique<NcclChannel>(group, backend, shape);
  try {
    channel->connect(group);
  } catch (...) {
    // The process is about to end. The rest of the channel is left alone, because destroying it may wait for ever.
    channel.release()->abort();
    throw;
  }
  return channel;
}

}  // namespace lfm2
