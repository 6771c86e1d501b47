// The control link over MPI.
#pragma once

#include "comm/control_link.h"
#include "comm/mpi_messages.h"

namespace lfm2 {

class MpiControlLink : public ControlLink {
 public:
  // Collective; the group's first rank is the first stage.
  explicit MpiControlLink(const MpiGroup& group) : messages_(group), last_(group.size() - 1) {}

  void send_step(const std::vector<int32_t>& words) override { messages_.send(words, 1, last_, kStep); }
  bool receive_step(std::vector<int32_t>& words) override { return messages_.receive(words, step_); }
  void send_tokens(const std::vector<int32_t>& words) override { messages_.send(words, 0, 0, kTokens); }
  bool receive_tokens(std::vector<int32_t>& words) override { return messages_.receive(words, tokens_); }
  void send_times(const std::vector<int32_t>& words) override { messages_.send(words, 0, 0, kTimes); }
  bool receive_times(std::vector<int32_t>& words) override { return messages_.receive(words, times_); }
  void ask_to_stop() override { messages_.send({}, 0, 0, kStop); }
  bool asked_to_stop() override {
    std::vector<int32_t> words;
    return messages_.receive(words, stop_);
  }
  void progress() override { messages_.progress(); }

 private:
  enum Tag : int { kStep = 1, kTokens, kStop, kTimes };

  MpiMessages messages_;
  int last_ = 0;
  MpiMessages::Incoming step_{0, kStep}, tokens_{last_, kTokens}, stop_{MPI_ANY_SOURCE, kStop},
      times_{MPI_ANY_SOURCE, kTimes};
};

}  // namespace lfm2
