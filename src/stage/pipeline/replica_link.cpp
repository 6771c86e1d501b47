#include "stage/pipeline/replica_link.h"

#include <algorithm>
#include <iterator>

#include "kernels/backend.h"

namespace lfm2 {

namespace {

constexpr int kOrder = 1, kNews = 2;
constexpr double kMaxShareOfLimit = 1.0 / 8;  // the most that one look adds to a silence, as a share of its limit

}  // namespace

void Silence::look(double now) {
  if (limit_ <= 0) return;
  seconds_ += std::min(now - std::exchange(looked_, now), kMaxShareOfLimit * limit_);
  if (seconds_ >= limit_)
    throw Error(ExitCode::kLost,
                fmt::format("no word for {:.1f} s (--timeout {:g}) from {}", seconds_, timeout_, peer_));
}

Silence ReplicaLinks::silence_of(int replica) const {
  return {replica == 0 ? "rank 0, which deals the samples"
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

ReplicaPeer::ReplicaPeer(ReplicaLinks& links, int replica)
    : links_(links), replica_(replica), silence_(links.silence_of(replica)) {}

void ReplicaPeer::send_words(std::vector<int32_t> words) {
  links_.messages.send(std::move(words), replica_, replica_, replica_ == 0 ? kNews : kOrder);
  last_sent_ = steady_seconds();
}

bool ReplicaPeer::receive_words(std::vector<int32_t>& words) {
  const bool received = links_.messages.receive(words, links_.incoming[static_cast<size_t>(replica_)]);
  if (received) silence_.heard();
  return received;
}

bool ReplicaPeer::is_word_due() const {
  const double interval = links_.timeout_seconds > 0 ? std::min(1.0, links_.timeout_seconds / 4) : 1.0;
  return steady_seconds() - last_sent_ >= interval;
}

void ReplicaPeer::look() { silence_.look(steady_seconds()); }

FrontRequests::FrontRequests(std::unique_ptr<SharedRequests> all, ReplicaLinks* links)
    : all_(std::move(all)), own_(all_->replica(0)), links_(links) {
  for (int replica = 1; links_ != nullptr && replica < links_->replicas; ++replica)
    others_.push_back({.peer = ReplicaPeer(*links_, replica), .source = all_->replica(static_cast<size_t>(replica))});
}

void FrontRequests::receive_news(Other& other) {
  while (std::optional<ReplicaNews> news = other.peer.receive<ReplicaNews>()) {
    for (const auto& [sample, cached] : news->begun) other.source.begun(sample, cached);
    if (!news->drawn.empty()) other.source.drawn(std::move(news->drawn));
    for (const auto& [stage, busy, total] : news->stage_seconds) other.source.stage_seconds(stage, busy, total);
    if (news->caches) other.source.caches(news->caches->first, news->caches->second);
    stopped_ |= news->stopped;
  }
}

void FrontRequests::send_order(Other& other, bool ended) {
  ReplicaOrder order{.cancelled = other.source.cancelled(), .ended = ended};
  while (std::optional<Request> request = other.source.next()) order.requests.push_back(std::move(*request));
  if (!order.requests.empty() || !order.cancelled.empty() || ended || other.peer.is_word_due()) other.peer.send(order);
}

void FrontRequests::poll() {
  all_->poll();
  if (others_.empty()) return;
  links_->messages.progress();
  for (Other& other : others_) receive_news(other);
  const bool ends = !told_end_ && own_.ended();
  for (Other& other : others_) {
    other.peer.look();
    send_order(other, ends);
  }
  told_end_ |= ends;
}

void FrontRequests::stop_others() {
  for (Other& other : others_) other.peer.send(ReplicaOrder{.stop = true});
}

RemoteRequests::RemoteRequests(ReplicaLinks& links, bool returns_tokens)
    : links_(links), front_(links, 0), returns_tokens_(returns_tokens) {}

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

// A request that is cancelled before it is popped is forgotten, as the scheduler has not heard of it.
void RemoteRequests::poll() {
  links_.messages.progress();
  while (std::optional<ReplicaOrder> order = front_.receive<ReplicaOrder>()) {
    for (const int32_t sample : order->cancelled)
      if (std::erase_if(requests_, [&](const Request& one) { return one.sample == sample; }) == 0)
        cancelled_.push_back(sample);
    std::ranges::move(order->requests, std::back_inserter(requests_));
    ended_ |= order->ended;
    stopped_ |= order->stop;
  }
  front_.look();
  if (!news_.empty() || front_.is_word_due()) send_news();
}

}  // namespace lfm2
