// The control link over MPI.
#pragma once

#include "comm/control_link.h"
#include "comm/mpi_messages.h"

namespace lfm2 {

class MpiControlLink : public ControlLink {
 public:
  explicit MpiControlLink(const MpiGroup& group);  // collective; the group's first rank is the first stage

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
  MpiMessages messages_;
  int last_ = 0;
  MpiMessages::Incoming step_, tokens_, stop_, times_;
};

}  // namespace lfm2
