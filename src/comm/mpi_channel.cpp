// The channel over MPI_Irecv and MPI_Isend: one request for each buffer and direction.
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

// Messages are counted in elements, not bytes, so that a buffer may hold 2^31 - 1 of them. MPI only copies, so an
// integer type of the same size does for every dtype.
MPI_Datatype element_type(const Tensor& tensor) { return size_bytes(tensor.dtype) == 2 ? MPI_UINT16_T : MPI_UINT32_T; }

int element_count(const Tensor& tensor) {
  if (tensor.numel() > INT_MAX)
    throw Error(
        ExitCode::kUsage,
        fmt::format("a micro-batch of {} tokens exceeds the 2^31 - 1 elements of one MPI message: choose a smaller "
                    "--micro-batch",
                    tensor.dim(0)));
  return static_cast<int>(tensor.numel());
}

#if defined(OMPI_HAVE_MPI_EXT_CUDA)
// Open MPI 4 was built with CUDA and yet takes no GPU memory where it found no libcuda.so.1 or the user says so
// (OMPI_MCA_opal_cuda_support=0), of which MPIX_Query_cuda_support knows nothing. Open MPI 5 has no such variable.
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

// The library that the program runs with is asked, not the headers of the one that it was built with.
std::string mpi_staging_reason() {
#if defined(OMPI_HAVE_MPI_EXT_CUDA)
  if (MPIX_Query_cuda_support() != 1) return mpi_library_version() + " was built without CUDA";
  return cuda_support_is_off() ? "the CUDA support of " + mpi_library_version() + " is off (opal_cuda_support)" : "";
#else
  return mpi_library_version() + " cannot be asked whether it takes GPU memory";
#endif
}

MpiChannel::MpiChannel(const MpiGroup& pipeline, Backend& backend, const ChannelShape& shape)
    : previous_(previous_rank(pipeline.rank(), pipeline.size(), shape.ring)),
      next_(next_rank(pipeline.rank(), pipeline.size(), shape.ring)),
      backend_(backend),
      incoming_(static_cast<size_t>(shape.buffers)),
      outgoing_(static_cast<size_t>(shape.buffers)),
      has_received_(!previous_),
      has_sent_(!next_) {
  MPI_CHECK(MPI_Comm_dup(pipeline.comm(), &comm_));
  if (backend.memory_is_host_memory()) return;
  if (mpi_staging_reason().empty()) {
    until_proven_ = std::make_unique<FatalSignals>(
        fmt::format(
            "lfm2_stage: rank {} ({}): killed at the first GPU memory that MPI sends or receives itself, which {} "
            "claims to do: OMPI_MCA_opal_cuda_support=0 takes the way through the host",
            pipeline.watchdog().rank(), pipeline.host(), mpi_library_version()),
        [&watchdog = pipeline.watchdog()] { return watchdog.claim(); });
    return;
  }
  to_device_ = backend.create_stream();
  to_host_ = backend.create_stream();
  for (Incoming& in : incoming_) {
    if (previous_) in.host = backend.allocate_host(shape.buffer_bytes);
    in.copied = backend.create_event();
  }
  for (Outgoing& out : outgoing_) {
    if (next_) out.host = backend.allocate_host(shape.buffer_bytes);
    out.copied = backend.create_event();
  }
}

MpiChannel::~MpiChannel() {
  if (to_device_) to_device_->drain();
  if (to_host_) to_host_->drain();
  MPI_Comm_free(&comm_);
}

void MpiChannel::receive(int buffer, const Tensor& into) {
  Incoming& in = incoming_[static_cast<size_t>(buffer)];
  in.into = into;
  in.copying = false;
  in.started = steady_seconds();
  void* target = to_device_ ? in.host.data() : into.data;
  MPI_CHECK(MPI_Irecv(target, element_count(into), element_type(into), *previous_, kHiddenTag, comm_, &in.request));
}

bool MpiChannel::arrived(int buffer) {
  Incoming& in = incoming_[static_cast<size_t>(buffer)];
  int done = 0;
  MPI_CHECK(MPI_Test(&in.request, &done, MPI_STATUS_IGNORE));
  if (done != 0 && to_device_ && !in.copying) {
    backend_.copy(*to_device_, in.into.data, in.host.data(), in.into.bytes());
    to_device_->record(*in.copied);
    in.copying = true;
  }
  if (done != 0 && in.started > 0) {
    finished_.received.push_back({0, in.started, steady_seconds()});
    note_proof(has_received_);
    in.started = 0;
  }
  return done != 0;
}

void MpiChannel::order_after_arrival(int buffer, Stream& compute) {
  if (to_device_) compute.wait(*incoming_[static_cast<size_t>(buffer)].copied);
}

void MpiChannel::send(int buffer, const Tensor& from, Event& computed) {
  expect(sent(buffer), "MpiChannel::send: the buffer is still being sent");
  Outgoing& out = outgoing_[static_cast<size_t>(buffer)];
  out.from = from;
  out.ready = &computed;
  if (to_host_) {
    to_host_->wait(computed);
    backend_.copy(*to_host_, out.host.data(), from.data, from.bytes());
    to_host_->record(*out.copied);
    out.ready = out.copied.get();
  }
  pending_.push_back(buffer);
  progress();
}

bool MpiChannel::sent(int buffer) {
  const Outgoing& out = outgoing_[static_cast<size_t>(buffer)];
  return out.request == MPI_REQUEST_NULL && std::find(pending_.begin(), pending_.end(), buffer) == pending_.end();
}

Channel::Transfers MpiChannel::take_finished() {
  for (std::vector<Span>* spans : {&finished_.sent, &finished_.received})
    std::sort(spans->begin(), spans->end(), [](const Span& a, const Span& b) { return a.start < b.start; });
  return std::exchange(finished_, {});
}

void MpiChannel::progress() {
  while (!pending_.empty()) {
    Outgoing& out = outgoing_[static_cast<size_t>(pending_.front())];
    if (!out.ready->done()) break;
    MPI_CHECK(MPI_Isend(to_host_ ? out.host.data() : out.from.data, element_count(out.from), element_type(out.from),
                        *next_, kHiddenTag, comm_, &out.request));
    out.started = steady_seconds();
    pending_.pop_front();
  }
  for (Outgoing& out : outgoing_) {
    if (out.request == MPI_REQUEST_NULL) continue;
    int done = 0;
    MPI_CHECK(MPI_Test(&out.request, &done, MPI_STATUS_IGNORE));
    if (done == 0) continue;
    finished_.sent.push_back({0, out.started, steady_seconds()});
    note_proof(has_sent_);
  }
}

void MpiChannel::note_proof(bool& done) {
  done = true;
  if (has_received_ && has_sent_) until_proven_.reset();
}

}  // namespace lfm2
