// The last resort against a hang: ends this process where even MPI_Init, or a call into a library that has no deadline,
// does not return. The launcher then ends the others.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>

#include "kernels/error.h"

namespace lfm2 {

class Deadline {
 public:
  // After `seconds` (0: never) prints `line` and ends with kLost, unless it was destroyed before.
  Deadline(double seconds, std::string line) {
    if (seconds > 0)
      thread_ = std::jthread([seconds, line](const std::stop_token& stop) { watch(seconds, line, stop); });
  }

 private:
  static void watch(double seconds, const std::string& line, const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any changed;
    std::unique_lock lock(mutex);
    changed.wait_for(lock, stop, std::chrono::duration<double>(seconds), [] { return false; });
    if (stop.stop_requested()) return;
    fmt::print(stderr, "{}\n", line);
    _exit(static_cast<int>(ExitCode::kLost));
  }

  std::jthread thread_;
};

}  // namespace lfm2
