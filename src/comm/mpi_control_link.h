// The control link over MPI, on a communicator of its own.
#pragma once

#include <deque>

#include "comm/control_link.h"
#include "comm/mpi_world.h"

namespace lfm2 {

class MpiControlLink : public ControlLink {
 public:
  explicit MpiControlLink(const MpiGroup& group);  // collective; the group's first rank is the first stage
  MpiControlLink(const MpiControlLink&) = delete;
  MpiControlLink& operator=(const MpiControlLink&) = delete;
  ~MpiControlLink() override;

  void send_step(const std::vector<int32_t>& words) override;
  bool receive_step(std::vector<int32_t>& words) override;
  void send_tokens(const std::vector<int32_t>& words) override;
  bool receive_tokens(std::vector<int32_t>& words) override;
  void send_times(const std::vector<int32_t>& words) override;
  bool receive_times(std::vector<int32_t>& words) override;
  void ask_to_stop() override;
  bool asked_to_stop() override;
  void progress() override;

 private:
  struct Outgoing {
    std::vector<int32_t> words;
    std::vector<MPI_Request> requests;
  };
  struct Incoming {
    int from, tag;
    std::vector<int32_t> words;
    MPI_Request request = MPI_REQUEST_NULL;  // a message that has begun to arrive but is not complete
  };
  void send(const std::vector<int32_t>& words, int first, int last, int tag);
  bool receive(std::vector<int32_t>& words, Incoming& incoming);

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  std::deque<Outgoing> outgoing_;
  Incoming step_, tokens_, stop_, times_;
};

}  // namespace lfm2
