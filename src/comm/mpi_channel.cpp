// MPI_Irecv and MPI_Isend, one request a slot and direction.
#include "comm/mpi_channel.h"

#include <algorithm>
#include <climits>

namespace lfm2 {

namespace {

constexpr int kHiddenTag = 1;

// Elements, not bytes, so that a slot may hold 2^31 - 1 of them. The library only copies: the type's meaning does not
// matter.
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

MpiChannel::MpiChannel(MPI_Comm comm, int previous, int next) : previous_(previous), next_(next) {
  MPI_CHECK(MPI_Comm_dup(comm, &comm_));
  incoming_.fill(MPI_REQUEST_NULL);
}

MpiChannel::~MpiChannel() { MPI_Comm_free(&comm_); }

void MpiChannel::receive(int slot, const Tensor& into) {
  MPI_CHECK(MPI_Irecv(into.data, element_count(into), element_type(into), previous_, kHiddenTag, comm_,
                      &incoming_[static_cast<size_t>(slot)]));
}

bool MpiChannel::arrived(int slot) {
  int done = 0;
  MPI_CHECK(MPI_Test(&incoming_[static_cast<size_t>(slot)], &done, MPI_STATUS_IGNORE));
  return done != 0;
}

void MpiChannel::send(int slot, const Tensor& from, Event& computed) {
  expect(sent(slot), "MpiChannel::send: the slot is still being sent");
  Outgoing& out = outgoing_[static_cast<size_t>(slot)];
  out.from = from;
  out.computed = &computed;
  pending_.push_back(slot);
  progress();
}

bool MpiChannel::sent(int slot) {
  const Outgoing& out = outgoing_[static_cast<size_t>(slot)];
  return out.request == MPI_REQUEST_NULL && std::find(pending_.begin(), pending_.end(), slot) == pending_.end();
}

void MpiChannel::progress() {
  while (!pending_.empty()) {
    Outgoing& out = outgoing_[static_cast<size_t>(pending_.front())];
    if (!out.computed->done()) break;
    MPI_CHECK(MPI_Isend(out.from.data, element_count(out.from), element_type(out.from), next_, kHiddenTag, comm_,
                        &out.request));
    out.started = MPI_Wtime();
    pending_.pop_front();
  }
  for (Outgoing& out : outgoing_) {
    if (out.request == MPI_REQUEST_NULL) continue;
    int done = 0;
    MPI_CHECK(MPI_Test(&out.request, &done, MPI_STATUS_IGNORE));
    if (done != 0) sending_seconds_ += MPI_Wtime() - out.started;
  }
}

}  // namespace lfm2
