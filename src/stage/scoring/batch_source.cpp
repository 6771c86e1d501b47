// An order is the micro-batches of one or more whole samples, which one pipeline computes in a row.
#include "stage/scoring/batch_source.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "comm/wait.h"

namespace lfm2 {

namespace {

MicroBatchContent pop(std::deque<MicroBatchContent>& batches) {
  MicroBatchContent first = std::move(batches.front());
  batches.pop_front();
  return first;
}

}  // namespace

FrontBatches::FrontBatches(const MicroBatches& all, std::optional<Sharing> sharing)
    : all_(all), sharing_(std::move(sharing)) {
  std::ranges::move(deal(), std::back_inserter(own_));
  for (int replica = 1; sharing_ && replica < sharing_->links.replicas; ++replica)
    others_.push_back({.peer = ReplicaPeer(sharing_->links, replica)});
}

// The next micro-batches that go to one pipeline.
std::vector<MicroBatchContent> FrontBatches::deal() {
  std::vector<MicroBatchContent> batches;
  while (next_ < all_.plan().micro_batches) {
    batches.push_back(all_.content(next_++));
    if (!sharing_ || sharing_->is_end(batches.back().samples)) break;
  }
  return batches;
}

std::optional<MicroBatchContent> FrontBatches::next() {
  if (own_.empty()) std::ranges::move(deal(), std::back_inserter(own_));
  if (own_.empty()) return {};
  return pop(own_);
}

void FrontBatches::send_order(Other& other) {
  BatchOrder order;
  if (other.waits && !stopped_) order.batches = deal();
  if (!order.batches.empty()) other.waits = false;
  const bool ends = next_ == all_.plan().micro_batches && !other.told_end;
  if (order.batches.empty() && !ends && !other.peer.is_word_due()) return;
  order.ended = ends;
  other.told_end |= ends;
  other.peer.send(order);
}

void FrontBatches::poll() {
  if (others_.empty()) return;
  sharing_->links.messages.progress();
  for (Other& other : others_)
    while (std::optional<BatchNews> news = other.peer.receive<BatchNews>()) {
      other.waits |= news->begun;
      other.ended |= news->ended;
      sharing_->on_passed_on(news->passed_on);
      if (news->stopped) stop_others();
    }
  for (Other& other : others_) {
    if (other.ended) continue;
    other.peer.look();
    send_order(other);
  }
}

void FrontBatches::stop_others() {
  if (std::exchange(stopped_, true)) return;
  for (Other& other : others_)
    if (!other.ended) other.peer.send(BatchOrder{.stop = true});
}

void FrontBatches::end(const std::function<bool()>& stop, Watchdog& watchdog, const std::function<void()>& poll) {
  wait_idle(watchdog, [&] {
    if (stop()) stop_others();
    poll();
    return std::ranges::all_of(others_, &Other::ended);
  });
}

bool RemoteBatches::ready() { return !batches_.empty() || ended_ || stopped_; }

std::optional<MicroBatchContent> RemoteBatches::next() {
  if (batches_.empty()) return {};
  MicroBatchContent first = pop(batches_);
  if (batches_.empty()) {
    news_.begun = true;
    front_.send(std::exchange(news_, {}));
  }
  return first;
}

void RemoteBatches::poll() {
  links_.messages.progress();
  while (std::optional<BatchOrder> order = front_.receive<BatchOrder>()) {
    std::ranges::move(order->batches, std::back_inserter(batches_));
    ended_ |= order->ended;
    stopped_ |= order->stop;
  }
  front_.look();
  if (front_.is_word_due()) front_.send(std::exchange(news_, {}));
}

void RemoteBatches::end(const std::function<bool()>& stop, Watchdog&, const std::function<void()>&) {
  news_.stopped = stop();
  news_.ended = true;
  front_.send(std::exchange(news_, {}));
}

}  // namespace lfm2
