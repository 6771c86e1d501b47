// Limits the work of tokenising one text, so that no pattern of an untrusted tokenizer.json runs for hours on some
// text. Only backtracking and lookahead count. The common patterns do this once or twice for each run of characters,
// far below the limit.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace lfm2 {

class WorkLimit {
 public:
  // `what` names the file. `stop` may be null; when it becomes true, the work ends early. Both must outlive this.
  WorkLimit(const std::string& what, size_t text_bytes, const std::atomic<bool>* stop)
      : what_(what), text_bytes_(text_bytes), stop_(stop), left_(kSteps + kStepsOfByte * text_bytes) {}

  uint64_t left() const { return left_; }
  // Counts steps of `part` of the file. Error(kData) naming the part if there are too many; else as check_stop().
  void charge(uint64_t steps, std::string_view part) {
    check_stop();
    if (steps > left_)
      throw Error(ExitCode::kData, fmt::format("{}: {} takes more than {} steps with this text of {} bytes", what_,
                                               part, kSteps + kStepsOfByte * text_bytes_, text_bytes_));
    left_ -= steps;
  }
  // Error(kStopped).
  void check_stop() const {
    if (stop_ != nullptr && stop_->load(std::memory_order_relaxed))
      throw Error(ExitCode::kStopped, "stopped while a text became tokens");
  }

 private:
  static constexpr uint64_t kSteps = 10'000'000, kStepsOfByte = 64;

  const std::string& what_;
  const size_t text_bytes_;
  const std::atomic<bool>* const stop_;
  uint64_t left_;
};

}  // namespace lfm2
