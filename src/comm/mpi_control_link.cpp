// MPI_Isend with the message kept until it has left; matched probes, since only the sender knows how long it is.
#include "comm/mpi_control_link.h"

namespace lfm2 {

namespace {
constexpr int kStepTag = 1, kTokensTag = 2, kStopTag = 3;
}

MpiControlLink::MpiControlLink(const MpiGroup& group) : rank_(group.rank()), size_(group.size()) {
  MPI_CHECK(MPI_Comm_dup(group.comm(), &comm_));
}

MpiControlLink::~MpiControlLink() { MPI_Comm_free(&comm_); }

void MpiControlLink::send(const std::vector<int32_t>& words, int first, int last, int tag) {
  Outgoing& out = outgoing_.emplace_back(Outgoing{words, {}});
  for (int rank = first; rank <= last; ++rank) {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_CHECK(MPI_Isend(out.words.data(), static_cast<int>(out.words.size()), MPI_INT32_T, rank, tag, comm_, &request));
    out.requests.push_back(request);
  }
}

bool MpiControlLink::receive(std::vector<int32_t>& words, int from, int tag) {
  int found = 0, count = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  MPI_CHECK(MPI_Improbe(from, tag, comm_, &found, &message, &status));
  if (found == 0) return false;
  MPI_CHECK(MPI_Get_count(&status, MPI_INT32_T, &count));
  words.resize(static_cast<size_t>(count));
  MPI_CHECK(MPI_Mrecv(words.data(), count, MPI_INT32_T, &message, MPI_STATUS_IGNORE));
  return true;
}

void MpiControlLink::send_step(const std::vector<int32_t>& words) { send(words, 1, size_ - 1, kStepTag); }
bool MpiControlLink::receive_step(std::vector<int32_t>& words) { return receive(words, 0, kStepTag); }
void MpiControlLink::send_tokens(const std::vector<int32_t>& words) { send(words, 0, 0, kTokensTag); }
bool MpiControlLink::receive_tokens(std::vector<int32_t>& words) { return receive(words, size_ - 1, kTokensTag); }

void MpiControlLink::ask_to_stop() { send({}, 0, 0, kStopTag); }

bool MpiControlLink::asked_to_stop() {
  std::vector<int32_t> words;
  return receive(words, MPI_ANY_SOURCE, kStopTag);
}

void MpiControlLink::progress() {
  while (!outgoing_.empty()) {
    Outgoing& out = outgoing_.front();
    int done = 0;
    MPI_CHECK(MPI_Testall(static_cast<int>(out.requests.size()), out.requests.data(), &done, MPI_STATUSES_IGNORE));
    if (done == 0) return;
    outgoing_.pop_front();
  }
}

}  // namespace lfm2
