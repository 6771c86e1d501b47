#include "serve/live_requests.h"

#include <utility>

namespace lfm2::serve {

namespace {

double seconds_between(std::chrono::steady_clock::time_point begin, std::chrono::steady_clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace

int32_t LiveRequests::reserve(int32_t count) {
  const std::lock_guard lock(mutex_);
  // Samples with these old numbers have ended, so the numbers may be reused.
  if (next_sample_ > INT32_MAX - count) next_sample_ = 0;
  return std::exchange(next_sample_, next_sample_ + count);
}

LiveRequests::Added LiveRequests::add(std::vector<Request> requests) {
  const std::lock_guard lock(mutex_);
  if (draining_) return Added::kDraining;
  if (std::ssize(waiting_) + std::ssize(requests) > max_waiting_) return Added::kFull;
  const auto now = Clock::now();
  for (Request& request : requests) waiting_.push_back({std::move(request), now});
  return Added::kYes;
}

void LiveRequests::cancel(int32_t sample) {
  const std::lock_guard lock(mutex_);
  if (std::erase_if(waiting_, [&](const Waiting& one) { return one.request.sample == sample; }) > 0) return;
  if (running_.erase(sample) > 0) cancelled_.push_back(sample);
}

void LiveRequests::drain() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
}

bool LiveRequests::draining() const {
  const std::lock_guard lock(mutex_);
  return draining_;
}

int64_t LiveRequests::running() const {
  const std::lock_guard lock(mutex_);
  return std::ssize(running_);
}

std::vector<Drawn> LiveRequests::wait_for_tokens(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  any_drawn_.wait_for(lock, time, [&] { return !drawn_.empty(); });
  return std::exchange(drawn_, {});
}

int64_t LiveRequests::waiting() const {
  const std::lock_guard lock(mutex_);
  return std::ssize(waiting_);
}

std::optional<Request> LiveRequests::next() {
  const std::lock_guard lock(mutex_);
  if (waiting_.empty()) return {};
  Waiting first = std::move(waiting_.front());
  waiting_.pop_front();
  metrics_.queue_seconds.observe(seconds_between(first.since, Clock::now()));
  metrics_.prompt_tokens += std::ssize(first.request.prompt);
  running_[first.request.sample] = {.since = first.since, .prefill_only = first.request.prefill_only};
  return std::move(first.request);
}

bool LiveRequests::ended() const {
  const std::lock_guard lock(mutex_);
  return draining_ && waiting_.empty();
}

std::vector<int32_t> LiveRequests::cancelled() {
  const std::lock_guard lock(mutex_);
  return std::exchange(cancelled_, {});
}

void LiveRequests::begun(int32_t sample, int64_t cached) {
  const std::lock_guard lock(mutex_);
  metrics_.cached_tokens += cached;
  if (const auto found = running_.find(sample); found != running_.end()) found->second.cached = cached;
}

void LiveRequests::drawn(std::vector<SampleToken> tokens) {
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  const bool waits = drawn_.empty();
  for (auto& [sample, token] : tokens) {
    const auto found = running_.find(sample);
    if (found == running_.end()) continue;  // it was cancelled, and the scheduler has not processed that yet
    Running& one = found->second;
    if (!one.prefill_only && token.ends != FinishReason::kError) {
      (std::exchange(one.any_token, true) ? metrics_.token_seconds : metrics_.first_token_seconds)
          .observe(seconds_between(one.since, now));
      ++metrics_.generated_tokens;
    }
    metrics_.drafts += token.drafts > 0 ? 1 : 0;
    metrics_.draft_tokens += token.drafts;
    metrics_.accepted_tokens += token.drafted ? 1 : 0;
    one.since = now;
    const int64_t cached = one.cached;
    if (token.ends) running_.erase(found);
    drawn_.push_back({{sample, std::move(token)}, cached});
  }
  if (waits && !drawn_.empty()) any_drawn_.notify_one();
}

}  // namespace lfm2::serve
