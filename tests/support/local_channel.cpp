// A mailbox between two threads, and the channel on top of it.
#include "support/local_channel.h"

#include <algorithm>
#include <cstring>

namespace lfm2 {

LocalLink::Ticket LocalLink::post_send(const Tensor& from) {
  const std::lock_guard lock(mutex_);
  sends_.push_back(from);
  match();
  return ++sends_posted_;
}

LocalLink::Ticket LocalLink::post_receive(const Tensor& into) {
  const std::lock_guard lock(mutex_);
  receives_.push_back(into);
  match();
  return ++receives_posted_;
}

bool LocalLink::done(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  return matched_ >= ticket;
}

void LocalLink::match() {
  while (!sends_.empty() && !receives_.empty()) {
    expect(sends_.front().bytes() == receives_.front().bytes(), "LocalLink: the two sides disagree about the size");
    std::memcpy(receives_.front().data, sends_.front().data, sends_.front().bytes());
    sends_.pop_front();
    receives_.pop_front();
    ++matched_;
  }
}

void LocalChannel::receive(int buffer, const Tensor& into) {
  incoming_[static_cast<size_t>(buffer)] = previous_->post_receive(into);
}

bool LocalChannel::arrived(int buffer) { return previous_->done(incoming_[static_cast<size_t>(buffer)]); }

void LocalChannel::send(int buffer, const Tensor& from, Event& computed) {
  Outgoing& out = outgoing_[static_cast<size_t>(buffer)];
  out.from = from;
  out.computed = &computed;
  pending_.push_back(buffer);
  progress();
}

bool LocalChannel::sent(int buffer) {
  const Outgoing& out = outgoing_[static_cast<size_t>(buffer)];
  return std::find(pending_.begin(), pending_.end(), buffer) == pending_.end() &&
         (out.ticket == 0 || next_->done(out.ticket));
}

bool LocalChannel::progress() {
  bool moved = false;
  while (!pending_.empty()) {
    Outgoing& out = outgoing_[static_cast<size_t>(pending_.front())];
    if (!out.computed->done()) break;
    out.ticket = next_->post_send(out.from);
    pending_.pop_front();
    moved = true;
  }
  return moved;
}

}  // namespace lfm2
