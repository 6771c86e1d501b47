// Queues between the server and the generations of its replicas: requests go to the schedulers, tokens come back. Three
// sides use it: threads that add requests; the generations, each of which pops its own requests between two steps; and
// the thread that writes answers.
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
#include "serve/replica_choice.h"
#include "stage/pipeline/request_source.h"

namespace lfm2::serve {

struct Drawn : SampleToken {
  int64_t cached = 0;    // number of prompt tokens found in the prefix cache
  int32_t replica = -1;  // which of several drew it; -1: there is one
};

class LiveRequests {
 public:
  enum class Added : uint8_t { kYes, kFull, kDraining };

  // At most `max_waiting` requests wait. Each of the replicas has the capacity `each`.
  explicit LiveRequests(int64_t max_waiting, size_t replicas = 1, const Capacity& each = {});
  LiveRequests(const LiveRequests&) = delete;
  LiveRequests& operator=(const LiveRequests&) = delete;

  Metrics& metrics() { return metrics_; }

  // On any thread: Reserves `count` consecutive sample numbers that no other request of this run uses. Returns the
  // first.
  int32_t reserve(int32_t count);
  // Adds all requests or none of them. Their sample numbers must be reserved.
  Added add(std::vector<Request> requests);
  // Adds requests of no client, which begin only while no client's request waits. They do not count as waiting. Returns
  // false if the server drains.
  bool add_in_background(std::vector<Request> requests);
  // Whether a client's request has waited longer to begin.
  bool client_waits_longer_than(std::chrono::milliseconds time) const;
  void cancel(int32_t sample);  // does nothing if it has ended
  void drain();                 // refuses further requests
  bool draining() const;
  int64_t waiting() const;
  int64_t running() const { return total(running_by_replica()); }
  std::vector<int64_t> running_by_replica() const;

  // The thread that writes answers: returns the tokens drawn since the last call. Waits at most `time` for the first.
  std::vector<Drawn> wait_for_tokens(std::chrono::milliseconds time);

  // The requests of one replica, for its generation. They have ended once the server drains and no replica has an open
  // request, so that all replicas end together.
  RequestSource& replica(size_t number) { return replicas_[number]; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Waiting {
    Request request;
    PromptPages prompt;
    Clock::time_point since;
    bool background = false;
  };
  struct Running {
    size_t replica = 0;
    Clock::time_point since;  // when the request was added, or its newest token drawn
    int64_t prompt = 0;       // its tokens, until the sequence has begun; then 0
    bool any_token = false;
    int64_t cached = 0;         // see Drawn
    bool prefill_only = false;  // see Request
    bool background = false;
  };
  using RunningBySample = std::unordered_map<int32_t, Running>;

  class Replica : public RequestSource {
   public:
    Replica(LiveRequests& all, size_t number) : all_(all), number_(number), metrics_(all.metrics_.replicas[number]) {}
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
    friend class LiveRequests;
    void push(Waiting one);
    LiveRequests& all_;
    const size_t number_;
    ReplicaMetrics& metrics_;
    // Guarded by all_.mutex_:
    std::deque<Waiting> waiting_;  // popped by this replica; those of clients first
    std::vector<int32_t> cancelled_;
    int64_t running_ = 0;
  };

  static int64_t total(const std::vector<int64_t>& counts);
  std::vector<Waiting> as_waiting(std::vector<Request> requests, bool background) const;
  void choose_replicas();
  bool choose_replicas(std::deque<Waiting>& waiting);
  int64_t count_waiting() const;
  void leave(RunningBySample::iterator running);

  const int64_t max_waiting_;
  Metrics metrics_;
  std::deque<Replica> replicas_;
  mutable std::mutex mutex_;
  std::condition_variable any_drawn_;
  // Guarded by mutex_:
  ReplicaChoice choice_;
  std::deque<Waiting> waiting_, background_;  // without a replica, the oldest first
  RunningBySample running_;
  std::vector<Drawn> drawn_;
  int32_t next_sample_ = 0;
  bool draining_ = false;
};

}  // namespace lfm2::serve
