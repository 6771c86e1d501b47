// What the server counts and measures, in the form that Prometheus reads. Thread safe.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace lfm2::serve {

// Seconds by upper bounds, as Prometheus' histograms are.
class Histogram {
 public:
  void observe(double seconds);
  // The lines of this histogram, under that name.
  std::string text(std::string_view name, std::string_view help) const;

 private:
  static constexpr std::array kBounds{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,  0.25,
                                      0.5,   1.0,    2.5,   5.0,  10.0,  30.0, 60.0, 300.0};
  std::array<std::atomic<int64_t>, kBounds.size() + 1> counts_{};
  std::atomic<double> sum_ = 0;
};

struct Metrics {
  std::atomic<int64_t> requests_completed = 0, requests_failed = 0, requests_aborted = 0, requests_refused = 0;
  std::atomic<int64_t> prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
  // From adding a request to its start, to its first token; between two of its tokens; from its arrival to its end.
  Histogram queue_seconds, first_token_seconds, token_seconds, request_seconds;

  std::string text(int64_t running, int64_t waiting) const;
};

}  // namespace lfm2::serve
