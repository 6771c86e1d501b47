// A sent message is kept until MPI_Isend is done with it. Receiving uses matched probes, since only the sender knows
// the length. The rest of a message may never come if its sender was stopped, so receives are tested and never waited
// for.
#include "comm/mpi_messages.h"

#include <chrono>
#include <utility>

namespace lfm2 {

namespace {
// At the end all messages have been received, except some that no rank asked for any more; these are short, so MPI
// buffers them. MPI may have to be polled before it completes them.
constexpr std::chrono::seconds kMaxFarewell{1};
}  // namespace

MpiMessages::MpiMessages(const MpiGroup& group) { MPI_CHECK(MPI_Comm_dup(group.comm(), &comm_)); }

MpiMessages::~MpiMessages() {
  const auto until = std::chrono::steady_clock::now() + kMaxFarewell;
  while (!outgoing_.empty() && std::chrono::steady_clock::now() < until) {
    Outgoing& out = outgoing_.front();
    int done = 0;
    if (MPI_Testall(static_cast<int>(out.requests.size()), out.requests.data(), &done, MPI_STATUSES_IGNORE) !=
        MPI_SUCCESS)
      break;
    if (done != 0) outgoing_.pop_front();
  }
  MPI_Comm_free(&comm_);
}

void MpiMessages::send(std::vector<int32_t> words, int first, int last, int tag) {
  expect(std::in_range<int>(words.size()), "a message has 2^31 words or more");
  Outgoing& out = outgoing_.emplace_back(Outgoing{std::move(words), {}});
  for (int rank = first; rank <= last; ++rank) {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_CHECK(MPI_Isend(out.words.data(), static_cast<int>(out.words.size()), MPI_INT32_T, rank, tag, comm_, &request));
    out.requests.push_back(request);
  }
}

bool MpiMessages::receive(std::vector<int32_t>& words, Incoming& incoming) {
  if (incoming.request == MPI_REQUEST_NULL) {
    int found = 0, count = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    MPI_CHECK(MPI_Improbe(incoming.from, incoming.tag, comm_, &found, &message, &status));
    if (found == 0) return false;
    MPI_CHECK(MPI_Get_count(&status, MPI_INT32_T, &count));
    incoming.words.resize(static_cast<size_t>(count));
    MPI_CHECK(MPI_Imrecv(incoming.words.data(), count, MPI_INT32_T, &message, &incoming.request));
  }
  int done = 0;
  MPI_CHECK(MPI_Test(&incoming.request, &done, MPI_STATUS_IGNORE));
  if (done == 0) return false;
  words.swap(incoming.words);
  return true;
}

void MpiMessages::progress() {
  while (!outgoing_.empty()) {
    Outgoing& out = outgoing_.front();
    int done = 0;
    MPI_CHECK(MPI_Testall(static_cast<int>(out.requests.size()), out.requests.data(), &done, MPI_STATUSES_IGNORE));
    if (done == 0) return;
    outgoing_.pop_front();
  }
}

}  // namespace lfm2
