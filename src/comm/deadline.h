// The last resort against a hang: ends this process where MPI_Init, or a library call that has no deadline, does not
// return. The launcher then ends the other ranks.
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
  // Unless destroyed before, prints `line` after `seconds` and ends the process with kLost. 0, or more than a century:
  // never.
  Deadline(double seconds, std::string line) {
    if (seconds > 0 && seconds < kCentury)
      thread_ = std::jthread([seconds, line](const std::stop_token& stop) { watch(seconds, line, stop); });
  }

 private:
  static constexpr double kCentury = 3.2e9;

  static void watch(double seconds, const std::string& line, const std::stop_token& stop) {
    using Clock = std::chrono::steady_clock;
    constexpr auto kOverslept = std::chrono::seconds(1), kGrace = std::chrono::seconds(3);
    std::mutex mutex;
    std::condition_variable_any changed;
    std::unique_lock lock(mutex);
    auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    while (!stop.stop_requested()) {
      changed.wait_until(lock, stop, end, [] { return false; });
      if (stop.stop_requested()) return;
      if (Clock::now() < end + kOverslept) break;
      // This process was itself stopped meanwhile; the ranks that were not know the cause and end the job.
      end = Clock::now() + kGrace;
    }
    fmt::print(stderr, "{}\n", line);
    _exit(static_cast<int>(ExitCode::kLost));
  }

  std::jthread thread_;
};

}  // namespace lfm2
