// The last resort against a hang: ends this process if MPI_Init, or a library call without a deadline, does not return.
// The launcher then ends the other ranks.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/standard_streams.h"

namespace lfm2 {

class Deadline {
 public:
  // After `seconds`, prints `line` and ends the process with kLost, unless this object was destroyed before. 0, or more
  // than a century: never. With `orphan_line`, also prints that line and ends once the parent process is gone, because
  // MPI in its start does not always notice that its launcher was killed.
  Deadline(double seconds, std::string line, std::string orphan_line = "") {
    if (seconds > 0 && seconds < kCentury)
      thread_ =
          std::jthread([seconds, line = std::move(line), orphan_line = std::move(orphan_line), parent = ::getppid()](
                           const std::stop_token& stop) { watch(seconds, line, orphan_line, parent, stop); });
  }

 private:
  static constexpr double kCentury = 3.2e9;

  [[noreturn]] static void end_process(const std::string& line) {
    say(line);
    _exit(static_cast<int>(ExitCode::kLost));
  }

  static void watch(double seconds, const std::string& line, const std::string& orphan_line, pid_t parent,
                    const std::stop_token& stop) {
    using Clock = std::chrono::steady_clock;
    constexpr auto kOverslept = std::chrono::seconds(1), kGrace = std::chrono::seconds(3);
    constexpr auto kLook = std::chrono::milliseconds(200);
    std::mutex mutex;
    std::condition_variable_any changed;
    std::unique_lock lock(mutex);
    auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    while (true) {
      changed.wait_until(lock, stop, orphan_line.empty() ? end : std::min(end, Clock::now() + kLook),
                         [] { return false; });
      if (stop.stop_requested()) return;
      if (!orphan_line.empty() && ::getppid() != parent) end_process(orphan_line);
      if (Clock::now() < end) continue;
      if (Clock::now() < end + kOverslept) break;
      // This process was suspended meanwhile. Ranks that were not suspended know the cause and end the job.
      end = Clock::now() + kGrace;
    }
    end_process(line);
  }

  std::jthread thread_;
};

}  // namespace lfm2
