// Control messages between stages that are threads of one process: for tests.
#pragma once

#include <deque>
#include <mutex>

#include "comm/control_link.h"

namespace lfm2 {

// The mailboxes that all stages of one pipeline share.
struct LocalControlHub {
  explicit LocalControlHub(size_t stages) : steps(stages) {}
  std::mutex mutex;
  // [stages]: the steps that each stage has not received yet.
  std::vector<std::deque<std::vector<int32_t>>> steps;
  std::deque<std::vector<int32_t>> tokens, times;
  bool stop = false;
};

class LocalControlLink : public ControlLink {
 public:
  LocalControlLink(LocalControlHub& hub, size_t stage) : hub_(hub), stage_(stage) {}

  void send_step(const std::vector<int32_t>& words) override {
    const std::lock_guard lock(hub_.mutex);
    for (size_t stage = 1; stage < hub_.steps.size(); ++stage) hub_.steps[stage].push_back(words);
  }
  bool receive_step(std::vector<int32_t>& words) override { return take(hub_.steps[stage_], words); }
  void send_tokens(const std::vector<int32_t>& words) override {
    const std::lock_guard lock(hub_.mutex);
    hub_.tokens.push_back(words);
  }
  bool receive_tokens(std::vector<int32_t>& words) override { return take(hub_.tokens, words); }
  void send_times(const std::vector<int32_t>& words) override {
    const std::lock_guard lock(hub_.mutex);
    hub_.times.push_back(words);
  }
  bool receive_times(std::vector<int32_t>& words) override { return take(hub_.times, words); }
  void ask_to_stop() override {
    const std::lock_guard lock(hub_.mutex);
    hub_.stop = true;
  }
  bool asked_to_stop() override {
    const std::lock_guard lock(hub_.mutex);
    return hub_.stop;
  }
  void progress() override {}

 private:
  bool take(std::deque<std::vector<int32_t>>& queue, std::vector<int32_t>& words) {
    const std::lock_guard lock(hub_.mutex);
    if (queue.empty()) return false;
    words = std::move(queue.front());
    queue.pop_front();
    return true;
  }

  LocalControlHub& hub_;
  size_t stage_;
};

}  // namespace lfm2
