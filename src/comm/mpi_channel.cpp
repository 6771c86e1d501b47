// The channel over MPI_Irecv and MPI_Isend: a request for each message of a micro-batch.
#include "comm/mpi_channel.h"

#include <algorithm>
#include <array>
#include <climits>

#if defined(OPEN_MPI)
#include <mpi-ext.h>
#endif

namespace lfm2 {

namespace {

constexpr int kHiddenTag = 1;

// Messages are counted in elements. MPI only copies, so an integer type of the same size serves every dtype.
MPI_Datatype element_type(const Tensor& tensor) { return size_bytes(tensor.dtype) == 2 ? MPI_UINT16_T : MPI_UINT32_T; }

// Between processes that may not read each other's memory, Open MPI moves about 100 KB of a message each time that both
// sides poll. So host memory is sent in many messages at once. The other GPU reads GPU memory directly, a message as a
// whole; its pieces are as large as MPI can count.
constexpr size_t kHostPieceBytes = size_t{256} << 10, kGpuPieceBytes = size_t{1} << 30;

#if defined(OMPI_HAVE_MPI_EXT_CUDA)
// An Open MPI 4 with CUDA does not accept GPU memory if it found no libcuda.so.1, or if the user disabled it
// (OMPI_MCA_opal_cuda_support=0). MPIX_Query_cuda_support does not report this. Open MPI 5 has no such variable.
bool cuda_support_is_off() {
  int provided = 0, index = 0, count = 0;
  if (MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS) return false;
  MPI_T_cvar_handle handle = MPI_T_CVAR_HANDLE_NULL;
  std::array<char, 64> value{};  // a bool, or an int in some versions
  const bool known = MPI_T_cvar_get_index("opal_cuda_support", &index) == MPI_SUCCESS &&
                     MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count) == MPI_SUCCESS &&
                     MPI_T_cvar_read(handle, value.data()) == MPI_SUCCESS;
  if (handle != MPI_T_CVAR_HANDLE_NULL) MPI_T_cvar_handle_free(&handle);
  MPI_T_finalize();
  return known && value[0] == 0;
}
#endif

}  // namespace

// Asks the library that is loaded, not the headers at build time.
std::string mpi_staging_reason() {
#if defined(OMPI_HAVE_MPI_EXT_CUDA)
  if (MPIX_Query_cuda_support() != 1) return mpi_library_version() + " was built without CUDA";
  return cuda_support_is_off() ? "the CUDA support of " + mpi_library_version() + " is off (opal_cuda_support)" : "";
#else
  return mpi_library_version() + " cannot be asked whether it takes GPU memory";
#endif
}

std::string mpi_staging_reason(const MpiGroup& ranks) {
  const std::string mine = mpi_staging_reason();
  const bool all_take_it = ranks.all_ranks(mine.empty());
  return all_take_it || !mine.empty() ? mine : "MPI takes no GPU memory on another rank";
}

MpiChannel::MpiChannel(const MpiGroup& pipeline, const Backend& backend, const ChannelShape& shape, size_t piece_bytes)
    : previous_(previous_rank(pipeline.rank(), pipeline.size(), shape.ring)),
      next_(next_rank(pipeline.rank(), pipeline.size(), shape.ring)),
      piece_bytes_(piece_bytes),
      incoming_(static_cast<size_t>(shape.buffers)),
      outgoing_(static_cast<size_t>(shape.buffers)),
      to_send_(static_cast<size_t>(shape.buffers)) {
  if (piece_bytes_ == 0) piece_bytes_ = backend.memory_is_host_memory() ? kHostPieceBytes : kGpuPieceBytes;
  MPI_CHECK(MPI_Comm_dup(pipeline.comm(), &comm_));
  if (backend.memory_is_host_memory()) return;
  fatal_signals_ = std::make_unique<FatalSignals>(
      fmt::format(
          "lfm2_stage: rank {} ({}): killed inside MPI, which sends and receives GPU memory itself, as {} claims "
          "to: OMPI_MCA_opal_cuda_support=0 takes the way through the host",
          pipeline.watchdog().rank(), pipeline.host(), mpi_library_version()),
      [&watchdog = pipeline.watchdog()] { return watchdog.claim(); },
      [&watchdog = pipeline.watchdog()] { watchdog.end_all(ExitCode::kSoftware); });
}

MpiChannel::~MpiChannel() { MPI_Comm_free(&comm_); }

template <class Start>
void MpiChannel::begin(Transfer& transfer, const Tensor& tensor, Start start) {
  transfer.messages.clear();
  transfer.done = 0;
  transfer.started = steady_seconds();
  const size_t element = size_bytes(tensor.dtype), piece = piece_bytes_ / element * element;
  if (tensor.bytes() > std::min(piece, kHostPieceBytes))
    start(tensor.data, 0, transfer.messages.emplace_back(MPI_REQUEST_NULL));
  for (size_t at = 0; at < tensor.bytes(); at += piece)
    start(tensor.data + at, static_cast<int>(std::min(piece, tensor.bytes() - at) / element),
          transfer.messages.emplace_back(MPI_REQUEST_NULL));
}

bool MpiChannel::move(std::vector<Transfer>& transfers, std::deque<int>& begun, size_t least,
                      std::vector<Span>& finished) {
  bool moved = false;
  for (; !begun.empty(); begun.pop_front()) {
    Transfer& transfer = transfers[static_cast<size_t>(begun.front())];
    const size_t before = transfer.done;
    for (; !transfer.over(); ++transfer.done) {
      int done = 0;
      MPI_CHECK(MPI_Test(&transfer.messages[transfer.done], &done, MPI_STATUS_IGNORE));
      if (done == 0) break;
    }
    moved |= transfer.done != before;
    if (!transfer.over()) return moved || transfer.under_way(least);
    finished.push_back({0, transfer.started, steady_seconds()});
  }
  return moved;
}

void MpiChannel::receive(int buffer, const Tensor& into) {
  expect(arrived(buffer), "MpiChannel::receive: the buffer is still being received into");
  begin(incoming_[static_cast<size_t>(buffer)], into, [&](std::byte* data, int count, MPI_Request& request) {
    MPI_CHECK(MPI_Irecv(data, count, element_type(into), *previous_, kHiddenTag, comm_, &request));
  });
  receiving_.push_back(buffer);
}

bool MpiChannel::arrived(int buffer) { return incoming_[static_cast<size_t>(buffer)].over(); }

void MpiChannel::send(int buffer, const Tensor& from, Event& computed) {
  expect(sent(buffer), "MpiChannel::send: the buffer is still being sent");
  to_send_[static_cast<size_t>(buffer)] = {from, &computed};
  pending_.push_back(buffer);
  progress();
}

bool MpiChannel::sent(int buffer) {
  return outgoing_[static_cast<size_t>(buffer)].over() &&
         std::find(pending_.begin(), pending_.end(), buffer) == pending_.end();
}

Channel::Transfers MpiChannel::pop_finished() { return std::exchange(finished_, {}); }

bool MpiChannel::progress() {
  bool moved = false;
  for (; !pending_.empty(); pending_.pop_front()) {
    const auto buffer = static_cast<size_t>(pending_.front());
    const Outgoing& out = to_send_[buffer];
    if (!out.computed->done()) break;
    begin(outgoing_[buffer], out.from, [&](const std::byte* data, int count, MPI_Request& request) {
      MPI_CHECK(MPI_Isend(data, count, element_type(out.from), *next_, kHiddenTag, comm_, &request));
    });
    sending_.push_back(pending_.front());
    moved = true;
  }
  // MPI completes the sender's empty message at once; the next message shows that the receiver is ready.
  moved |= move(incoming_, receiving_, 1, finished_.received);
  moved |= move(outgoing_, sending_, 2, finished_.sent);
  return moved;
}

}  // namespace lfm2
