// The small messages of a run, which go between hosts apart from the hidden states. The first stage announces each step
// or micro-batch to all stages. The last stage returns the drawn tokens to the first. Any stage may ask the first stage
// to stop, and report its times. No function blocks.
#pragma once

#include <cstdint>
#include <vector>

namespace lfm2 {

class ControlLink {
 public:
  virtual ~ControlLink() = default;

  // First stage, to all others. Messages arrive in order.
  virtual void send_step(const std::vector<int32_t>& words) = 0;
  // Other stages: returns true, and the message in `words`, if the next step has arrived.
  virtual bool receive_step(std::vector<int32_t>& words) = 0;
  // Last stage, to the first stage, which may be the same one. Messages arrive in order.
  virtual void send_tokens(const std::vector<int32_t>& words) = 0;
  // First stage: returns true, and the message in `words`, if tokens have arrived.
  virtual bool receive_tokens(std::vector<int32_t>& words) = 0;

  // Other stages, to the first stage: how long they were busy. The first stage receives these from any stage.
  virtual void send_times(const std::vector<int32_t>& words) = 0;
  virtual bool receive_times(std::vector<int32_t>& words) = 0;

  // Any stage may ask once. On the first stage, asked_to_stop() is true after any stage has asked.
  virtual void ask_to_stop() = 0;
  virtual bool asked_to_stop() = 0;

  virtual void progress() = 0;  // frees messages that were sent; throws the error of a failed one
};

}  // namespace lfm2
