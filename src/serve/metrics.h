// The server's metrics in Prometheus' text format. Thread safe.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace lfm2::serve {

// A histogram of seconds with cumulative upper bounds, as Prometheus defines it.
class Histogram {
 public:
  void observe(double seconds);
  // The lines of this histogram, named `name`. `labels`: as a="b", with commas between; may be empty.
  std::string text(std::string_view name, std::string_view labels) const;

 private:
  static constexpr std::array kBounds{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,  0.25,
                                      0.5,   1.0,    2.5,   5.0,  10.0,  30.0, 60.0, 300.0};
  std::array<std::atomic<int64_t>, kBounds.size() + 1> counts_{};
  std::atomic<double> sum_ = 0;
};

// How long each stage of a pipeline was busy.
class StageSeconds {
 public:
  struct One {
    double busy = 0, idle = 0;
  };
  // Both times count from the start of the generation. A step counts as busy only once it has ended, so the idle time
  // errs on the high side until then.
  void set(int64_t stage, double busy, double total);
  std::vector<One> stages() const;

 private:
  mutable std::mutex mutex_;
  std::vector<One> stages_;  // guarded by mutex_
};

// Values at the time of the request.
struct Gauges {
  std::vector<int64_t> running = {};  // of each replica
  int64_t waiting = 0, connections = 0;
  int64_t dropped_lines = 0;  // of the log, since the start
};

struct ReplicaMetrics {
  std::atomic<int64_t> prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
  std::atomic<int64_t> drafts = 0, draft_tokens = 0, accepted_tokens = 0;  // steps of a sequence with drafts, and these
  // Of clients' requests: the times from adding one to its start and to its first token, and between two of its tokens.
  Histogram queue_seconds, first_token_seconds, token_seconds;

  StageSeconds stage_seconds;
  std::atomic<int64_t> used_slots = 0, used_pages = 0;  // of the caches
};

struct Metrics {
  explicit Metrics(size_t count = 1) : replicas(count) {}

  std::atomic<int64_t> requests_completed = 0, requests_failed = 0, requests_aborted = 0, requests_refused = 0;
  Histogram request_seconds;  // from the arrival of a request to its end
  std::vector<ReplicaMetrics> replicas;

  // With several replicas, what belongs to one of them has the label replica="0". A single one has no such label.
  std::string text(const Gauges& now) const;
};

}  // namespace lfm2::serve
