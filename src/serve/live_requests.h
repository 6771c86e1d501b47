// The requests of clients on their way to the scheduler, and their tokens on the way back. Three sides meet here:
// whoever adds requests, the generation, which takes them between two steps, and whoever writes answers.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "serve/metrics.h"
#include "stage/pipeline/request_source.h"

namespace lfm2::serve {

struct Drawn {
  int32_t sample = 0;
  DrawnToken token;
  int64_t cached = 0;  // tokens of the sample's prompt that the prefix cache had
};

class LiveRequests : public RequestSource {
 public:
  enum class Added : uint8_t { kYes, kFull, kDraining };

  // At most `max_waiting` requests wait.
  explicit LiveRequests(int64_t max_waiting) : max_waiting_(max_waiting) {}

  Metrics& metrics() { return metrics_; }

  // On any thread:
  // Numbers for `count` samples, not yet used by any other in this run.
  int32_t reserve(int32_t count);
  // All or none of them. Their numbers are reserved ones.
  Added add(std::vector<Request> requests);
  void cancel(int32_t sample);  // does nothing where it has ended
  void drain();                 // no request is added any more
  bool draining() const;
  int64_t running() const;

  // Whoever writes answers, on one thread: the tokens that were drawn since the last call. Waits for one for so long.
  std::vector<Drawn> wait_for_tokens(std::chrono::milliseconds time);

  // The generation: see RequestSource.
  int64_t waiting() const override;
  std::optional<Request> next() override;
  bool ended() const override;
  std::vector<int32_t> cancelled() override;
  void begun(int32_t sample, int64_t cached) override;
  void drawn(std::vector<SampleToken> tokens) override;
  void stage_seconds(int64_t stage, double busy, double total) override {
    metrics_.stage_seconds.set(stage, busy, total);
  }
  void caches(int64_t used_slots, int64_t used_pages) override {
    metrics_.used_slots = used_slots;
    metrics_.used_pages = used_pages;
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Waiting {
    Request request;
    Clock::time_point since;
  };
  struct Running {
    Clock::time_point since;  // the request was added, or its newest token was drawn
    bool any_token = false;
    int64_t cached = 0;         // see Drawn
    bool prefill_only = false;  // see Request
  };

  const int64_t max_waiting_;
  Metrics metrics_;
  mutable std::mutex mutex_;
  std::condition_variable any_drawn_;
  // Guarded by mutex_:
  std::deque<Waiting> waiting_;
  std::unordered_map<int32_t, Running> running_;  // by sample
  std::vector<int32_t> cancelled_;
  std::vector<Drawn> drawn_;
  int32_t next_sample_ = 0;
  bool draining_ = false;
};

}  // namespace lfm2::serve
