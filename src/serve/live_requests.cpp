#include "serve/live_requests.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace lfm2::serve {

namespace {

double seconds_between(std::chrono::steady_clock::time_point begin, std::chrono::steady_clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace

LiveRequests::LiveRequests(int64_t max_waiting, size_t replicas, const Capacity& each)
    : max_waiting_(max_waiting), metrics_(replicas), choice_(replicas, each) {
  for (size_t number = 0; number < replicas; ++number) replicas_.emplace_back(*this, number);
}

int32_t LiveRequests::reserve(int32_t count) {
  const std::lock_guard lock(mutex_);
  // Samples with these old numbers have ended, so the numbers may be reused.
  if (next_sample_ > INT32_MAX - count) next_sample_ = 0;
  return std::exchange(next_sample_, next_sample_ + count);
}

std::vector<LiveRequests::Waiting> LiveRequests::as_waiting(std::vector<Request> requests, bool background) const {
  const auto now = Clock::now();
  std::vector<Waiting> waiting;
  for (Request& request : requests) {
    PromptPages prompt = choice_.pages_of(request);
    waiting.push_back({std::move(request), std::move(prompt), now, background});
  }
  return waiting;
}

LiveRequests::Added LiveRequests::add(std::vector<Request> requests) {
  std::vector<Waiting> added = as_waiting(std::move(requests), false);
  const std::lock_guard lock(mutex_);
  if (draining_) return Added::kDraining;
  if (count_waiting() + std::ssize(added) > max_waiting_) return Added::kFull;
  for (Waiting& one : added) waiting_.push_back(std::move(one));
  choose_replicas();
  return Added::kYes;
}

bool LiveRequests::add_in_background(std::vector<Request> requests) {
  std::vector<Waiting> added = as_waiting(std::move(requests), true);
  const std::lock_guard lock(mutex_);
  if (draining_) return false;
  for (Waiting& one : added) background_.push_back(std::move(one));
  choose_replicas();
  return true;
}

bool LiveRequests::client_waits_longer_than(std::chrono::milliseconds time) const {
  const std::lock_guard lock(mutex_);
  const Clock::time_point latest = Clock::now() - time;
  const auto late = [&](const Waiting& one) { return !one.background && one.since < latest; };
  return std::ranges::any_of(waiting_, late) ||
         std::ranges::any_of(replicas_, [&](const Replica& one) { return std::ranges::any_of(one.waiting_, late); });
}

// Under the lock, after every change that makes room.
void LiveRequests::choose_replicas() {
  if (choose_replicas(waiting_) && !background_.empty() && count_waiting() == 0) choose_replicas(background_);
}

// Returns whether all have a replica now.
bool LiveRequests::choose_replicas(std::deque<Waiting>& waiting) {
  while (!waiting.empty()) {
    const std::optional<size_t> chosen = choice_.choose(waiting.front().prompt);
    if (!chosen) return false;
    replicas_[*chosen].push(std::move(waiting.front()));
    waiting.pop_front();
  }
  return true;
}

void LiveRequests::Replica::push(Waiting one) {
  const auto place = one.background ? waiting_.end() : std::ranges::find_if(waiting_, &Waiting::background);
  waiting_.insert(place, std::move(one));
}

void LiveRequests::cancel(int32_t sample) {
  const std::lock_guard lock(mutex_);
  const auto is_it = [&](const Waiting& one) { return one.request.sample == sample; };
  if (std::erase_if(waiting_, is_it) + std::erase_if(background_, is_it) > 0) return;
  for (Replica& replica : replicas_) {
    const auto found = std::ranges::find_if(replica.waiting_, is_it);
    if (found == replica.waiting_.end()) continue;
    choice_.begun(replica.number_, found->prompt.tokens);
    choice_.ended(replica.number_);
    replica.waiting_.erase(found);
    return choose_replicas();
  }
  const auto found = running_.find(sample);
  if (found == running_.end()) return;
  replicas_[found->second.replica].cancelled_.push_back(sample);
  leave(found);
  choose_replicas();
}

// Under the lock: a sequence has ended or was cancelled.
void LiveRequests::leave(RunningBySample::iterator running) {
  const Running& one = running->second;
  if (one.prompt > 0) choice_.begun(one.replica, one.prompt);
  choice_.ended(one.replica);
  --replicas_[one.replica].running_;
  running_.erase(running);
}

void LiveRequests::drain() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
}

bool LiveRequests::draining() const {
  const std::lock_guard lock(mutex_);
  return draining_;
}

int64_t LiveRequests::waiting() const {
  const std::lock_guard lock(mutex_);
  return count_waiting();
}

int64_t LiveRequests::count_waiting() const {
  int64_t count = std::ssize(waiting_);
  for (const Replica& replica : replicas_) count += std::ranges::count(replica.waiting_, false, &Waiting::background);
  return count;
}

std::vector<int64_t> LiveRequests::running_by_replica() const {
  const std::lock_guard lock(mutex_);
  std::vector<int64_t> running;
  for (const Replica& replica : replicas_) running.push_back(replica.running_);
  return running;
}

int64_t LiveRequests::total(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

std::vector<Drawn> LiveRequests::wait_for_tokens(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  any_drawn_.wait_for(lock, time, [&] { return !drawn_.empty(); });
  return std::exchange(drawn_, {});
}

int64_t LiveRequests::Replica::waiting() const {
  const std::lock_guard lock(all_.mutex_);
  return std::ssize(waiting_);
}

std::optional<Request> LiveRequests::Replica::next() {
  const std::lock_guard lock(all_.mutex_);
  if (waiting_.empty()) return {};
  Waiting first = std::move(waiting_.front());
  waiting_.pop_front();
  metrics_.prompt_tokens += first.prompt.tokens;
  all_.running_[first.request.sample] = {.replica = number_,
                                         .since = first.since,
                                         .prompt = first.prompt.tokens,
                                         .prefill_only = first.request.prefill_only,
                                         .background = first.background};
  ++running_;
  all_.choose_replicas();  // those in the background wait for this one
  return std::move(first.request);
}

bool LiveRequests::Replica::ended() const {
  const std::lock_guard lock(all_.mutex_);
  const auto waits = [](const Replica& one) { return !one.waiting_.empty(); };
  return all_.draining_ && all_.waiting_.empty() && all_.background_.empty() && all_.running_.empty() &&
         std::ranges::none_of(all_.replicas_, waits);
}

std::vector<int32_t> LiveRequests::Replica::cancelled() {
  const std::lock_guard lock(all_.mutex_);
  return std::exchange(cancelled_, {});
}

void LiveRequests::Replica::begun(int32_t sample, int64_t cached) {
  const std::lock_guard lock(all_.mutex_);
  metrics_.cached_tokens += cached;
  const auto found = all_.running_.find(sample);
  if (found == all_.running_.end()) return;
  Running& one = found->second;
  one.cached = cached;
  if (!one.background) metrics_.queue_seconds.observe(seconds_between(one.since, Clock::now()));
  all_.choice_.begun(number_, std::exchange(one.prompt, 0));
  all_.choose_replicas();
}

void LiveRequests::Replica::drawn(std::vector<SampleToken> tokens) {
  const std::lock_guard lock(all_.mutex_);
  const auto now = Clock::now();
  const bool waits = all_.drawn_.empty();
  for (auto& [sample, token] : tokens) {
    const auto found = all_.running_.find(sample);
    if (found == all_.running_.end()) continue;  // it was cancelled, and the scheduler has not processed that yet
    Running& one = found->second;
    if (!one.prefill_only && token.ends != FinishReason::kError) {
      Histogram& times = std::exchange(one.any_token, true) ? metrics_.token_seconds : metrics_.first_token_seconds;
      if (!one.background) times.observe(seconds_between(one.since, now));
      ++metrics_.generated_tokens;
    }
    metrics_.drafts += token.drafts > 0 ? 1 : 0;
    metrics_.draft_tokens += token.drafts;
    metrics_.accepted_tokens += token.drafted ? 1 : 0;
    one.since = now;
    const int64_t cached = one.cached;
    if (token.ends) all_.leave(found);
    const int32_t replica = all_.replicas_.size() > 1 ? static_cast<int32_t>(number_) : -1;
    all_.drawn_.push_back({{sample, std::move(token)}, cached, replica});
  }
  all_.choose_replicas();
  if (waits && !all_.drawn_.empty()) all_.any_drawn_.notify_one();
}

}  // namespace lfm2::serve
