// Waiting with a deadline: every host-side wait of the program goes through here, so that no hang is without a name.
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace lfm2 {

class Wait {
 public:
  // `poll` is called before each look at the condition: it moves transfers along and throws what went wrong
  // asynchronously.
  Wait(double timeout_seconds, std::function<void()> poll)
      : timeout_seconds_(timeout_seconds), poll_(std::move(poll)) {}

  // Returns the seconds waited once `done` is true. Error(kLost) after timeout_seconds (0: never), with `what` as its
  // subject.
  double until(const std::function<bool()>& done, const std::function<std::string()>& what) const;

 private:
  double timeout_seconds_;
  std::function<void()> poll_;
};

}  // namespace lfm2
