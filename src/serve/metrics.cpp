// Names equal those of other servers if they have the same meaning, except for our prefix.
#include "serve/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace lfm2::serve {

namespace {

std::string head(std::string_view name, std::string_view type, std::string_view help) {
  return fmt::format("# HELP lfm2_{0} {1}\n# TYPE lfm2_{0} {2}\n", name, help, type);
}

template <class Value>
std::string line(std::string_view name, std::string_view labels, const Value& value) {
  return labels.empty() ? fmt::format("lfm2_{} {}\n", name, value)
                        : fmt::format("lfm2_{}{{{}}} {}\n", name, labels, value);
}

std::string joined(const std::string& labels, const std::string& label) {
  return labels.empty() ? label : labels + "," + label;
}

std::string one(std::string_view name, std::string_view type, std::string_view help, int64_t value) {
  return head(name, type, help) + line(name, "", value);
}

}  // namespace

void Histogram::observe(double seconds) {
  const auto bound = std::lower_bound(kBounds.begin(), kBounds.end(), seconds);
  ++counts_[static_cast<size_t>(bound - kBounds.begin())];
  sum_ += seconds;
}

std::string Histogram::text(std::string_view name, std::string_view labels) const {
  const std::string bucket = fmt::format("{}_bucket", name), own(labels);
  std::string text;
  int64_t below = 0;
  for (size_t i = 0; i < kBounds.size(); ++i) {
    below += counts_[i];
    text += line(bucket, joined(own, fmt::format("le=\"{}\"", kBounds[i])), below);
  }
  below += counts_[kBounds.size()];
  return text + line(bucket, joined(own, "le=\"+Inf\""), below) +
         line(fmt::format("{}_sum", name), labels, sum_.load()) + line(fmt::format("{}_count", name), labels, below);
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

std::vector<StageSeconds::One> StageSeconds::stages() const {
  const std::lock_guard lock(mutex_);
  return stages_;
}

std::string Metrics::text(const Gauges& now) const {
  std::vector<std::string> labels;  // of the replicas
  for (size_t replica = 0; replica < replicas.size(); ++replica)
    labels.push_back(replicas.size() == 1 ? "" : fmt::format("replica=\"{}\"", replica));
  const auto of_each = [&](std::string_view name, std::string_view type, std::string_view help, const auto& value) {
    std::string text = head(name, type, help);
    for (size_t replica = 0; replica < replicas.size(); ++replica) text += line(name, labels[replica], value(replica));
    return text;
  };
  const auto counts = [&](std::string_view name, std::string_view type, std::string_view help, const auto& member) {
    return of_each(name, type, help, [&](size_t replica) { return (replicas[replica].*member).load(); });
  };
  std::string text =
      of_each("num_requests_running", "gauge", "Sequences that are being continued.",
              [&](size_t replica) { return replica < now.running.size() ? now.running[replica] : 0; }) +
      one("num_requests_waiting", "gauge", "Sequences that wait for their turn.", now.waiting) +
      one("connections", "gauge", "Connections that are open.", now.connections) +
      counts("cache_slots_used", "gauge", "Sequence slots of the caches that are taken.", &ReplicaMetrics::used_slots) +
      counts("cache_pages_used", "gauge", "Pages of the key-value cache that are taken.", &ReplicaMetrics::used_pages) +
      one("log_dropped_lines_total", "counter", "Lines that the log had no room for.", now.dropped_lines) +
      counts("prompt_tokens_total", "counter", "Tokens of prompts that were begun.", &ReplicaMetrics::prompt_tokens) +
      counts("prefix_cache_hits_total", "counter", "Tokens of prompts that the prefix cache had.",
             &ReplicaMetrics::cached_tokens) +
      counts("generation_tokens_total", "counter", "Tokens that were generated.", &ReplicaMetrics::generated_tokens) +
      counts("spec_decode_num_drafts_total", "counter", "Steps of a sequence that verified drafts.",
             &ReplicaMetrics::drafts) +
      counts("spec_decode_num_draft_tokens_total", "counter", "Tokens that were drafted.",
             &ReplicaMetrics::draft_tokens) +
      counts("spec_decode_num_accepted_tokens_total", "counter", "Drafted tokens that were right.",
             &ReplicaMetrics::accepted_tokens);
  text += head("requests_total", "counter", "Requests that ended, by how.");
  for (const auto& [name, count] : {std::pair{"completed", &requests_completed},
                                    {"failed", &requests_failed},
                                    {"aborted", &requests_aborted},
                                    {"refused", &requests_refused}})
    text += line("requests_total", fmt::format("result=\"{}\"", name), count->load());
  for (const auto& [name, help, seconds] :
       {std::tuple{"stage_busy_seconds_total", "Time that a stage of the pipeline computed.", &StageSeconds::One::busy},
        {"stage_idle_seconds_total", "Time that a stage of the pipeline did not compute.", &StageSeconds::One::idle}}) {
    text += head(name, "counter", help);
    for (size_t replica = 0; replica < replicas.size(); ++replica) {
      const std::vector<StageSeconds::One> stages = replicas[replica].stage_seconds.stages();
      for (size_t stage = 0; stage < stages.size(); ++stage)
        text += line(name, joined(labels[replica], fmt::format("stage=\"{}\"", stage)),
                     fmt::format("{:.3f}", stages[stage].*seconds));
    }
  }
  for (const auto& [name, help, histogram] :
       {std::tuple{"request_queue_time_seconds", "Time that sequences waited for their turn.",
                   &ReplicaMetrics::queue_seconds},
        {"time_to_first_token_seconds", "Time from a request to its first token.",
         &ReplicaMetrics::first_token_seconds},
        {"inter_token_latency_seconds", "Time from one token of a sequence to its next.",
         &ReplicaMetrics::token_seconds}}) {
    text += head(name, "histogram", help);
    for (size_t replica = 0; replica < replicas.size(); ++replica)
      text += (replicas[replica].*histogram).text(name, labels[replica]);
  }
  constexpr std::string_view kRequest = "e2e_request_latency_seconds";
  return text + head(kRequest, "histogram", "Time from a request to the end of its answer.") +
         request_seconds.text(kRequest, "");
}

}  // namespace lfm2::serve
