// The small messages of a run, which go from host to host beside the hidden states. The first stage tells all stages
// what the next step is, or whether another micro-batch comes. The last stage tells the first which tokens were drawn.
// Any stage may ask the first to stop, and tell it its times. No function blocks.
#pragma once

#include <cstdint>
#include <vector>

namespace lfm2 {

class ControlLink {
 public:
  virtual ~ControlLink() = default;

  // First stage, to all others. Messages arrive in order.
  virtual void send_step(const std::vector<int32_t>& words) = 0;
  // Other stages: true, and the message in `words`, where the next step has come.
  virtual bool receive_step(std::vector<int32_t>& words) = 0;
  // Last stage, to the first stage, which may be the same one. Messages arrive in order.
  virtual void send_tokens(const std::vector<int32_t>& words) = 0;
  // First stage: true, and the message in `words`, where tokens have come.
  virtual bool receive_tokens(std::vector<int32_t>& words) = 0;

  // Other stages, to the first stage: how long they were busy. The first stage receives what any of them sent.
  virtual void send_times(const std::vector<int32_t>& words) = 0;
  virtual bool receive_times(std::vector<int32_t>& words) = 0;

  // Any stage may ask, once; the first stage learns whether one of them has.
  virtual void ask_to_stop() = 0;
  virtual bool asked_to_stop() = 0;

  virtual void progress() = 0;  // frees messages that have left; throws the errors of those that failed
};

}  // namespace lfm2
