// Watchdogs of ranks that are threads of one process, as MpiWorld makes them for processes.
#pragma once

#include <atomic>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "comm/watchdog.h"

namespace lfm2::test {

struct LocalBoard {
  explicit LocalBoard(size_t ranks) : stamps(ranks) {
    for (size_t rank = 0; rank < ranks; ++rank) stamps[rank].start(static_cast<int>(rank));
  }
  // A watchdog for as long as it lives. Instead of ending a job, it keeps here what it would have done.
  Watchdog watchdog(size_t rank, double timeout_seconds = 60, const std::filesystem::path& file = "/dev/null") {
    return {stamps,
            rank,
            {.timeout_seconds = timeout_seconds, .stamps_file = file},
            {.claim = [this] { return !claimed.exchange(true); },
             .say =
                 [this](const std::string& text) {
                   const std::lock_guard lock(mutex);
                   line = text;
                 },
             .end = [this](ExitCode) { ended = true; }}};
  }

  std::string said() {
    const std::lock_guard lock(mutex);
    return line;
  }

  std::vector<RankStamps> stamps;
  std::atomic<bool> claimed = false, ended = false;
  std::mutex mutex;
  std::string line;  // guarded by mutex
};

}  // namespace lfm2::test
