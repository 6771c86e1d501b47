// Names are those of other servers where they have the same meaning, with a prefix of our own.
#include "serve/metrics.h"

#include <fmt/format.h>

#include <algorithm>

namespace lfm2::serve {

void Histogram::observe(double seconds) {
  const auto bound = std::lower_bound(kBounds.begin(), kBounds.end(), seconds);
  ++counts_[static_cast<size_t>(bound - kBounds.begin())];
  sum_ += seconds;
}

std::string Histogram::text(std::string_view name, std::string_view help) const {
  std::string text = fmt::format("# HELP lfm2_{0} {1}\n# TYPE lfm2_{0} histogram\n", name, help);
  int64_t below = 0;
  for (size_t i = 0; i < kBounds.size(); ++i) {
    below += counts_[i];
    text += fmt::format("lfm2_{}_bucket{{le=\"{}\"}} {}\n", name, kBounds[i], below);
  }
  below += counts_[kBounds.size()];
  return text + fmt::format("lfm2_{0}_bucket{{le=\"+Inf\"}} {1}\nlfm2_{0}_sum {2}\nlfm2_{0}_count {1}\n", name, below,
                            sum_.load());
}

std::string Metrics::text(int64_t running, int64_t waiting) const {
  const auto one = [](std::string_view name, std::string_view type, std::string_view help, int64_t value) {
    return fmt::format("# HELP lfm2_{0} {1}\n# TYPE lfm2_{0} {2}\nlfm2_{0} {3}\n", name, help, type, value);
  };
  std::string text =
      one("num_requests_running", "gauge", "Sequences that are being continued.", running) +
      one("num_requests_waiting", "gauge", "Sequences that wait for their turn.", waiting) +
      one("prompt_tokens_total", "counter", "Tokens of prompts that were begun.", prompt_tokens) +
      one("prefix_cache_hits_total", "counter", "Tokens of prompts that the prefix cache had.", cached_tokens) +
      one("generation_tokens_total", "counter", "Tokens that were generated.", generated_tokens);
  text += "# HELP lfm2_requests_total Requests that ended, by how.\n# TYPE lfm2_requests_total counter\n";
  for (const auto& [name, count] : {std::pair{"completed", &requests_completed},
                                    {"failed", &requests_failed},
                                    {"aborted", &requests_aborted},
                                    {"refused", &requests_refused}})
    text += fmt::format("lfm2_requests_total{{result=\"{}\"}} {}\n", name, count->load());
  return text + queue_seconds.text("request_queue_time_seconds", "Time that sequences waited for their turn.") +
         first_token_seconds.text("time_to_first_token_seconds", "Time from a request to its first token.") +
         token_seconds.text("inter_token_latency_seconds", "Time from one token of a sequence to its next.") +
         request_seconds.text("e2e_request_latency_seconds", "Time from a request to the end of its answer.");
}

}  // namespace lfm2::serve
