#include "comm/mpi_control_link.h"

namespace lfm2 {

namespace {
constexpr int kStepTag = 1, kTokensTag = 2, kStopTag = 3, kTimesTag = 4;
}  // namespace

MpiControlLink::MpiControlLink(const MpiGroup& group)
    : messages_(group),
      last_(group.size() - 1),
      step_{0, kStepTag},
      tokens_{last_, kTokensTag},
      stop_{MPI_ANY_SOURCE, kStopTag},
      times_{MPI_ANY_SOURCE, kTimesTag} {}

void MpiControlLink::send_step(const std::vector<int32_t>& words) { messages_.send(words, 1, last_, kStepTag); }
bool MpiControlLink::receive_step(std::vector<int32_t>& words) { return messages_.receive(words, step_); }
void MpiControlLink::send_tokens(const std::vector<int32_t>& words) { messages_.send(words, 0, 0, kTokensTag); }
bool MpiControlLink::receive_tokens(std::vector<int32_t>& words) { return messages_.receive(words, tokens_); }
void MpiControlLink::send_times(const std::vector<int32_t>& words) { messages_.send(words, 0, 0, kTimesTag); }
bool MpiControlLink::receive_times(std::vector<int32_t>& words) { return messages_.receive(words, times_); }

void MpiControlLink::ask_to_stop() { messages_.send({}, 0, 0, kStopTag); }

bool MpiControlLink::asked_to_stop() {
  std::vector<int32_t> words;
  return messages_.receive(words, stop_);
}

void MpiControlLink::progress() { messages_.progress(); }

}  // namespace lfm2
