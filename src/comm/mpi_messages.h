// Messages of words from rank to rank over MPI, on a separate communicator. Nothing blocks.
#pragma once

#include <deque>
#include <vector>

#include "comm/mpi_world.h"

namespace lfm2 {

class MpiMessages {
 public:
  // The messages of one kind that a rank receives.
  struct Incoming {
    int from, tag;  // `from` may be MPI_ANY_SOURCE; messages of one rank arrive in order
    std::vector<int32_t> words = {};
    MPI_Request request = MPI_REQUEST_NULL;  // a message that has begun to arrive but is not complete
  };

  explicit MpiMessages(const MpiGroup& group);  // collective
  MpiMessages(const MpiMessages&) = delete;
  MpiMessages& operator=(const MpiMessages&) = delete;
  ~MpiMessages();

  void send(std::vector<int32_t> words, int first, int last, int tag);  // to the ranks first ... last
  // Returns true, and the message in `words`, if one has arrived.
  bool receive(std::vector<int32_t>& words, Incoming& incoming);
  void progress();  // frees messages that were sent; throws the error of a failed one
  bool all_sent() const { return outgoing_.empty(); }  // as of the last progress()

 private:
  struct Outgoing {
    std::vector<int32_t> words;
    std::vector<MPI_Request> requests;
  };

  MPI_Comm comm_ = MPI_COMM_NULL;
  std::deque<Outgoing> outgoing_;
};

}  // namespace lfm2
