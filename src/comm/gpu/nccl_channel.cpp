// The channel over ncclSend and ncclRecv: a communicator for each edge.
#include "comm/gpu/nccl_channel.h"

#include <nccl.h>

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "comm/gpu/gpu_channel.h"

namespace lfm2 {

namespace {

// Thread blocks of a transfer. More blocks use more of NVLink's bandwidth, but each occupies an SM that matrix products
// could use. A receive holds its SMs from its submission on, mostly a whole micro-batch before the hidden states
// arrive, so products leave that number of SMs free. A send needs its SMs only for a moment; reserving SMs for sends,
// too, makes the pipeline slower.
constexpr int kMaxThreadBlocks = 4;
constexpr auto kMaxNcclAbortTime = std::chrono::seconds(1);

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
    case DType::kF8:
      break;
  }
  return ncclInt32;
}

// The communicator of an edge: rank 0 of it sends, rank 1 receives.
class NcclEdge final : public GpuEdge {
 public:
  static constexpr int kSender = 0, kReceiver = 1;

  // `rank` is kSender or kReceiver.
  NcclEdge(int rank, int peer, int buffers, const ncclUniqueId& id) : GpuEdge(peer, buffers), rank_(rank), id_(id) {}
  ~NcclEdge() override {
    if (comm_ != nullptr) ncclCommDestroy(comm_);
  }

  void start() override {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.maxCTAs = kMaxThreadBlocks;
    check_nccl(ncclCommInitRankConfig(&comm_, 2, id_, rank_, &config), nullptr, "ncclCommInitRankConfig");
  }
  void abort() override {
    if (comm_ == nullptr) return;
    const auto aborted = std::make_shared<std::promise<void>>();
    std::thread([comm = comm_, aborted] {
      ncclCommAbort(comm);
      aborted->set_value();
    }).detach();
    aborted->get_future().wait_for(kMaxNcclAbortTime);
  }

  bool settled() override {
    ncclResult_t state = ncclSuccess;
    check_nccl(ncclCommGetAsyncError(comm_, &state), comm_, "ncclCommGetAsyncError");
    if (state == ncclSuccess || state == ncclInProgress) return state == ncclSuccess;
    check_nccl(state, comm_, fmt::format("NCCL {} rank {}", rank_ == kSender ? "to" : "from", peer_));
    return true;
  }

 private:
  void enqueue(const Tensor& tensor) override {
    const auto count = static_cast<size_t>(tensor.numel());
    if (rank_ == kSender)
      NCCL_CHECK(comm_, ncclSend(tensor.data, count, nccl_type(tensor.dtype), kReceiver, comm_, stream()));
    else
      NCCL_CHECK(comm_, ncclRecv(tensor.data, count, nccl_type(tensor.dtype), kSender, comm_, stream()));
  }

  int rank_;  // in the edge's communicator
  ncclUniqueId id_;
  ncclComm_t comm_ = nullptr;
};

}  // namespace

std::string nccl_version() {
  int version = 0;
  check_nccl(ncclGetVersion(&version), nullptr, "ncclGetVersion");
  return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

std::unique_ptr<Channel> make_nccl_channel(const MpiGroup& group, Backend& backend, const ChannelShape& shape) {
  const int rank = group.rank(), ranks = group.size(), first = group.watchdog().rank() - rank;
  // Rank r makes the id of the edge to the next rank. All ranks take part in all broadcasts, which is simple and fast
  // enough.
  std::vector<ncclUniqueId> ids(static_cast<size_t>(ranks));
  for (int sender = 0; sender < ranks; ++sender) {
    if (!next_rank(sender, ranks, shape.ring)) continue;
    ncclUniqueId& id = ids[static_cast<size_t>(sender)];
    if (rank == sender) check_nccl(ncclGetUniqueId(&id), nullptr, "ncclGetUniqueId");
    group.broadcast(&id, sizeof id, sender, 0, "NCCL ids");
  }
  std::unique_ptr<GpuEdge> from, to;
  if (const std::optional<int> previous = previous_rank(rank, ranks, shape.ring)) {
    from = std::make_unique<NcclEdge>(NcclEdge::kReceiver, first + *previous, shape.buffers,
                                      ids[static_cast<size_t>(*previous)]);
    backend.reserve_sms(kMaxThreadBlocks);
  }
  if (const std::optional<int> next = next_rank(rank, ranks, shape.ring))
    to = std::make_unique<NcclEdge>(NcclEdge::kSender, first + *next, shape.buffers, ids[static_cast<size_t>(rank)]);
  return connect(std::make_unique<GpuChannel>(group, backend, std::move(from), std::move(to)));
}

}  // namespace lfm2
