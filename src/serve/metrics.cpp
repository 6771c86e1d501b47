// Names equal those of other servers if they have the same meaning, except for our prefix.
#include "serve/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

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

// A step that is being computed counts as busy time only after it has ended. Until then its time is reported as idle,
// and stays so, because a counter must not fall.
void StageSeconds::set(int64_t stage, double busy, double total) {
  const std::lock_guard lock(mutex_);
  if (stage >= std::ssize(stages_)) stages_.resize(static_cast<size_t>(stage) + 1);
  One& one = stages_[static_cast<size_t>(stage)];
  one.busy = std::max(one.busy, busy);
  one.idle = std::max(one.idle, total - busy);
}

std::string StageSeconds::text() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const auto& [name, help, seconds] :
       {std::tuple{"busy", "Time that a stage of the pipeline computed.", &One::busy},
        {"idle", "Time that a stage of the pipeline did not compute.", &One::idle}}) {
    text += fmt::format("# HELP lfm2_stage_{0}_seconds_total {1}\n# TYPE lfm2_stage_{0}_seconds_total counter\n", name,
                        help);
    for (size_t stage = 0; stage < stages_.size(); ++stage)
      text += fmt::format("lfm2_stage_{}_seconds_total{{stage=\"{}\"}} {:.3f}\n", name, stage, stages_[stage].*seconds);
  }
  return text;
}

std::string Metrics::text(const Gauges& now) const {
  const auto one = [](std::string_view name, std::string_view type, std::string_view help, int64_t value) {
    return fmt::format("# HELP lfm2_{0} {1}\n# TYPE lfm2_{0} {2}\nlfm2_{0} {3}\n", name, help, type, value);
  };
  std::string text =
      one("num_requests_running", "gauge", "Sequences that are being continued.", now.running) +
      one("num_requests_waiting", "gauge", "Sequences that wait for their turn.", now.waiting) +
      one("connections", "gauge", "Connections that are open.", now.connections) +
      one("cache_slots_used", "gauge", "Sequence slots of the caches that are taken.", used_slots) +
      one("cache_pages_used", "gauge", "Pages of the key-value cache that are taken.", used_pages) +
      one("log_dropped_lines_total", "counter", "Lines that the log had no room for.", now.dropped_lines) +
      one("prompt_tokens_total", "counter", "Tokens of prompts that were begun.", prompt_tokens) +
      one("prefix_cache_hits_total", "counter", "Tokens of prompts that the prefix cache had.", cached_tokens) +
      one("generation_tokens_total", "counter", "Tokens that were generated.", generated_tokens) +
      one("spec_decode_num_drafts_total", "counter", "Steps of a sequence that verified drafts.", drafts) +
      one("spec_decode_num_draft_tokens_total", "counter", "Tokens that were drafted.", draft_tokens) +
      one("spec_decode_num_accepted_tokens_total", "counter", "Drafted tokens that were right.", accepted_tokens);
  text += "# HELP lfm2_requests_total Requests that ended, by how.\n# TYPE lfm2_requests_total counter\n";
  for (const auto& [name, count] : {std::pair{"completed", &requests_completed},
                                    {"failed", &requests_failed},
                                    {"aborted", &requests_aborted},
                                    {"refused", &requests_refused}})
    text += fmt::format("lfm2_requests_total{{result=\"{}\"}} {}\n", name, count->load());
  return text + stage_seconds.text() +
         queue_seconds.text("request_queue_time_seconds", "Time that sequences waited for their turn.") +
         first_token_seconds.text("time_to_first_token_seconds", "Time from a request to its first token.") +
         token_seconds.text("inter_token_latency_seconds", "Time from one token of a sequence to its next.") +
         request_seconds.text("e2e_request_latency_seconds", "Time from a request to the end of its answer.");
}

}  // namespace lfm2::serve
