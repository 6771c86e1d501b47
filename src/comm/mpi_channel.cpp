// The channel over MPI_Irecv and MPI_Isend: one request for each buffer and direction.
#include "comm/mpi_channel.h"

#include <algorithm>
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

}  // namespace

bool mpi_is_cuda_aware() {
#if defined(OPEN_MPI) && defined(MPIX_CUDA_AWARE_SUPPORT) && MPIX_CUDA_AWARE_SUPPORT
  return MPIX_Query_cuda_support() == 1;
#else
  return false;
#endif
}

MpiChannel::MpiChannel(MPI_Comm comm, int previous, int next, Backend& backend, size_t buffer_bytes)
    : previous_(previous), next_(next), backend_(backend) {
  MPI_CHECK(MPI_Comm_dup(comm, &comm_));
  if (backend.memory_is_host_memory() || mpi_is_cuda_aware()) return;
  to_device_ = backend.create_stream();
  to_host_ = backend.create_stream();
  for (int buffer = 0; buffer < kBuffers; ++buffer) {
    const auto at = static_cast<size_t>(buffer);
    if (previous != kNoPeer) incoming_[at].host = backend.allocate_host(buffer_bytes);
    if (next != kNoPeer) outgoing_[at].host = backend.allocate_host(buffer_bytes);
    incoming_[at].copied = backend.create_event();
    outgoing_[at].copied = backend.create_event();
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
  MPI_CHECK(MPI_Irecv(target, element_count(into), element_type(into), previous_, kHiddenTag, comm_, &in.request));
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
                        next_, kHiddenTag, comm_, &out.request));
    out.started = steady_seconds();
    pending_.pop_front();
  }
  for (Outgoing& out : outgoing_) {
    if (out.request == MPI_REQUEST_NULL) continue;
    int done = 0;
    MPI_CHECK(MPI_Test(&out.request, &done, MPI_STATUS_IGNORE));
    if (done != 0) finished_.sent.push_back({0, out.started, steady_seconds()});
  }
}

}  // namespace lfm2
