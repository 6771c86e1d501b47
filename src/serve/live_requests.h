// Queues between the server and the generation: requests go to the scheduler, tokens come back. Three sides use it:
// threads that add requests, the generation, which pops them between two steps, and the thread that writes answers.
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

struct Drawn : SampleToken {
  int64_t cached = 0;  // number of prompt tokens found in the prefix cache
};

class LiveRequests : public RequestSource {
 public:
  enum class Added : uint8_t { kYes, kFull, kDraining };

  // At most `max_waiting` requests wait.
  explicit LiveRequests(int64_t max_waiting) : max_waiting_(max_waiting) {}

  Metrics& metrics() { return metrics_; }

  // On any thread: Reserves `count` consecutive sample numbers that no other request of this run uses. Returns the
  // first.
  int32_t reserve(int32_t count);
  // Adds all requests or none of them. Their sample numbers must be reserved.
  Added add(std::vector<Request> requests);
  void cancel(int32_t sample);  // does nothing if it has ended
  void drain();                 // refuses further requests
  bool draining() const;
  int64_t running() const;

  // The thread that writes answers: returns the tokens drawn since the last call. Waits at most `time` for the first.
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
    Clock::time_point since;  // when the request was added, or its newest token drawn
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
