#include "stage/pipeline/replica_link.h"

#include <algorithm>
#include <iterator>

#include "kernels/backend.h"

namespace lfm2 {

namespace {

constexpr int kOrder = 1, kNews = 2;
constexpr double kMaxShareOfLimit = 1.0 / 8;  // the most that one look adds to a silence, as a share of its limit

// Seconds from word to word.
double heartbeat(const ReplicaLinks& links) {
  return links.timeout_seconds > 0 ? std::min(1.0, links.timeout_seconds / 4) : 1.0;
}

}  // namespace

void Silence::look(double now) {
  if (limit_ <= 0) return;
  seconds_ += std::min(now - std::exchange(looked_, now), kMaxShareOfLimit * limit_);
  if (seconds_ >= limit_)
    throw Error(ExitCode::kLost,
                fmt::format("no word for {:.1f} s (--timeout {:g}) from {}", seconds_, timeout_, peer_));
}

Silence ReplicaLinks::silence_of(int replica) const {
  return {replica == 0 ? "rank 0, which has the requests"
                       : fmt::format("rank {}, the first one of replica {}", replica * stages, replica),
          timeout_seconds, timeouts, steady_seconds()};
}

ReplicaLinks::ReplicaLinks(const MpiGroup& world, int stages_of_each, double timeout, double of_timeout)
    : messages(MpiGroup(world, world.rank() % stages_of_each == 0 ? 1 : 0)),
      stages(stages_of_each),
      replicas(world.size() / stages_of_each),
      timeout_seconds(timeout),
      timeouts(of_timeout) {
  for (int replica = 0; replica < replicas; ++replica)
    incoming.push_back(world.rank() == 0 ? MpiMessages::Incoming{replica, kNews} : MpiMessages::Incoming{0, kOrder});
}

FrontRequests::FrontRequests(std::unique_ptr<SharedRequests> all, ReplicaLinks* links)
    : all_(std::move(all)), own_(all_->replica(0)), links_(links) {
  for (int replica = 1; links_ != nullptr && replica < links_->replicas; ++replica)
    others_.push_back({.replica = replica,
                       .source = all_->replica(static_cast<size_t>(replica)),
                       .silence = links_->silence_of(replica)});
}

void FrontRequests::receive_news(Other& other) {
  MpiMessages::Incoming& incoming = links_->incoming[static_cast<size_t>(other.replica)];
  for (std::vector<int32_t> words; links_->messages.receive(words, incoming);) {
    other.silence.heard();
    auto news = from_words<ReplicaNews>(words);
    for (const auto& [sample, cached] : news.begun) other.source.begun(sample, cached);
    if (!news.drawn.empty()) other.source.drawn(std::move(news.drawn));
    for (const auto& [stage, busy, total] : news.stage_seconds) other.source.stage_seconds(stage, busy, total);
    if (news.caches) other.source.caches(news.caches->first, news.caches->second);
    stopped_ |= news.stopped;
  }
}

void FrontRequests::send_order(Other& other, bool ended) {
  ReplicaOrder order{.cancelled = other.source.cancelled(), .ended = ended};
  while (std::optional<Request> request = other.source.next()) order.requests.push_back(std::move(*request));
  const double now = steady_seconds();
  if (order.requests.empty() && order.cancelled.empty() && !ended && now - other.last_order < heartbeat(*links_))
    return;
  links_->messages.send(to_words(order), other.replica, other.replica, kOrder);
  other.last_order = now;
}

void FrontRequests::poll() {
  all_->poll();
  if (others_.empty()) return;
  links_->messages.progress();
  for (Other& other : others_) receive_news(other);
  const bool ends = !told_end_ && own_.ended();
  for (Other& other : others_) {
    other.silence.look(steady_seconds());
    send_order(other, ends);
  }
  told_end_ |= ends;
}

void FrontRequests::stop_others() {
  for (const Other& other : others_)
    links_->messages.send(to_words(ReplicaOrder{.stop = true}), other.replica, other.replica, kOrder);
}

RemoteRequests::RemoteRequests(ReplicaLinks& links, bool returns_tokens)
    : links_(links), returns_tokens_(returns_tokens), silence_(links.silence_of(0)) {}

std::optional<Request> RemoteRequests::next() {
  if (requests_.empty()) return {};
  Request first = std::move(requests_.front());
  requests_.pop_front();
  return first;
}

void RemoteRequests::drawn(std::vector<SampleToken> tokens) {
  for (auto& [sample, token] : tokens) {
    if (returns_tokens_)
      news_.drawn.push_back({sample, std::move(token)});
    else if (token.ends)
      news_.drawn.push_back({sample, {.ends = token.ends}});
  }
  if (!news_.empty()) send_news();
}

void RemoteRequests::stop_others() {
  news_.stopped = true;
  send_news();
}

void RemoteRequests::send_news() {
  links_.messages.send(to_words(std::exchange(news_, {})), 0, 0, kNews);
  last_news_ = steady_seconds();
}

// A request that is cancelled before it is popped is forgotten, as the scheduler has not heard of it.
void RemoteRequests::poll() {
  links_.messages.progress();
  for (std::vector<int32_t> words; links_.messages.receive(words, links_.incoming.front());) {
    silence_.heard();
    auto order = from_words<ReplicaOrder>(words);
    for (const int32_t sample : order.cancelled)
      if (std::erase_if(requests_, [&](const Request& one) { return one.sample == sample; }) == 0)
        cancelled_.push_back(sample);
    std::ranges::move(order.requests, std::back_inserter(requests_));
    ended_ |= order.ended;
    stopped_ |= order.stop;
  }
  const double now = steady_seconds();
  silence_.look(now);
  if (!news_.empty() || now - last_news_ >= heartbeat(links_)) send_news();
}

}  // namespace lfm2
