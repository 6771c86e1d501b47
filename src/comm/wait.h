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
  // For `eager_seconds` it looks without pause, then politely: ranks may share cores with the threads they wait for.
  Wait(double timeout_seconds, std::function<void()> poll, double eager_seconds = kEagerSeconds)
      : timeout_seconds_(timeout_seconds), poll_(std::move(poll)), eager_(eager_seconds) {}
  static constexpr double kEagerSeconds = 300e-6;

  // Returns the seconds waited once `done` is true. Error(kLost) after timeout_seconds (0: never), with `what` as its
  // subject.
  double until(const std::function<bool()>& done, const std::function<std::string()>& what) const;

 private:
  double timeout_seconds_;
  std::function<void()> poll_;
  std::chrono::duration<double> eager_;
};

}  // namespace lfm2
