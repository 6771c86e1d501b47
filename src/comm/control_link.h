// The small messages of a run, on the host and beside the hidden states: the first stage tells every stage what the
// next step is, or whether another micro-batch comes; the last one tells the first which tokens came out of a step; any
// stage asks the first to stop. Nothing here blocks.
#pragma once

#include <cstdint>
#include <vector>

namespace lfm2 {

class ControlLink {
 public:
  virtual ~ControlLink() = default;

  // First stage: to all others. In order.
  virtual void send_step(const std::vector<int32_t>& words) = 0;
  // Other stages: true where the next step has come.
  virtual bool receive_step(std::vector<int32_t>& words) = 0;
  // Last stage, to the first (which may be itself). In order.
  virtual void send_tokens(const std::vector<int32_t>& words) = 0;
  // First stage.
  virtual bool receive_tokens(std::vector<int32_t>& words) = 0;

  // Any stage: to the first, once. That one is asked by any of them.
  virtual void ask_to_stop() = 0;
  virtual bool asked_to_stop() = 0;

  virtual void progress() = 0;  // lets go of messages that have left; throws what has failed
};

}  // namespace lfm2
