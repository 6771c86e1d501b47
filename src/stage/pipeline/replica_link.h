// With replicas, rank 0 has the requests of all of them. It sends the first stage of every other replica its requests,
// and gets back the tokens. Each side sends a word at least every second, so that the other side notices when it is
// lost, even on another host, whose stamps nobody here sees. Main threads only; nothing waits. The micro-batches of
// scoring (scoring/batch_source.h) go over the same links.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/mpi_messages.h"
#include "comm/stall.h"
#include "stage/pipeline/request_source.h"

namespace lfm2 {

// How long a peer has sent nothing. Time between two looks counts up to a limit, so that nobody is blamed after this
// rank itself was suspended.
class Silence {
 public:
  // The limit is `timeouts` times `timeout_seconds`, of which 0 is no limit. `peer`: its name in the error.
  Silence(std::string peer, double timeout_seconds, double timeouts, double now)
      : peer_(std::move(peer)), timeout_(timeout_seconds), limit_(timeouts * timeout_seconds), looked_(now) {}
  void heard() { seconds_ = 0; }
  void look(double now);  // Error(kLost) once the limit is reached

 private:
  std::string peer_;
  double timeout_, limit_, looked_, seconds_ = 0;
};

// A replica or rank 0 is lost after a silence of this many timeouts, as the watchdogs of its host know more. Rank 0 may
// wait for the disk of an output, and so may a replica that scores, because it writes its own rows.
inline constexpr double kSilentTimeouts = 2, kSilentTimeoutsOfRank0 = kSilentTimeouts * kDiskFactor;

// The links between rank 0 and the first stages of the other replicas, for several runs.
struct ReplicaLinks {
  // Collective over `world`, whose ranks form pipelines of `stages` ranks. A side that hears nothing for `timeouts`
  // times --timeout ends the job.
  ReplicaLinks(const MpiGroup& world, int stages, double timeout_seconds, double timeouts);
  Silence silence_of(int replica) const;

  MpiMessages messages;  // among the first stages; on other ranks without use
  int stages, replicas;
  double timeout_seconds, timeouts;
  std::vector<MpiMessages::Incoming> incoming;  // on rank 0 from each replica, else from rank 0
};

// One end of such a link.
class ReplicaPeer {
 public:
  // `replica`: the other end's; on first stages other than rank 0 it is 0.
  ReplicaPeer(ReplicaLinks& links, int replica);

  template <class Message>
  void send(const Message& message) {
    send_words(to_words(message));
  }
  template <class Message>
  std::optional<Message> receive() {
    std::vector<int32_t> words;
    if (!receive_words(words)) return {};
    return from_words<Message>(words);
  }
  bool is_word_due() const;  // whether the last message was sent so long ago that the other end needs another one
  void look();               // Error(kLost) if the other end is silent for too long

 private:
  void send_words(std::vector<int32_t> words);
  bool receive_words(std::vector<int32_t>& words);

  ReplicaLinks& links_;
  int replica_;
  Silence silence_;
  double last_sent_ = 0;
};

// From rank 0 to the first stage of another replica.
struct ReplicaOrder {
  std::vector<Request> requests = {};
  std::vector<int32_t> cancelled = {};  // samples
  bool ended = false;                   // no request will come
  bool stop = false;                    // no further step begins
};
void for_each_field(MaybeConst<ReplicaOrder> auto& order, const auto& each) {  // see base/words.h
  each(order.requests, order.cancelled, order.ended, order.stop);
}

// Back to rank 0: the calls of RequestSource since the last message.
struct ReplicaNews {
  struct StageSeconds {
    int64_t stage = 0;
    double busy = 0, total = 0;
  };
  std::vector<std::pair<int32_t, int64_t>> begun = {};  // samples, and their prompt tokens in the prefix cache
  std::vector<SampleToken> drawn = {};
  std::vector<StageSeconds> stage_seconds = {};
  std::optional<std::pair<int64_t, int64_t>> caches = {};  // sequence slots and pages in use
  bool stopped = false;                                    // the replica was asked to stop, and so should be all others
  bool empty() const { return begun.empty() && drawn.empty() && stage_seconds.empty() && !caches && !stopped; }
};
void for_each_field(MaybeConst<ReplicaNews::StageSeconds> auto& one, const auto& each) {
  each(one.stage, one.busy, one.total);
}
void for_each_field(MaybeConst<ReplicaNews> auto& news, const auto& each) {
  each(news.begun, news.drawn, news.stage_seconds, news.caches, news.stopped);
}

// The source of requests of a first stage.
class ReplicaRequests : public RequestSource {
 public:
  virtual bool is_asked_to_stop() const = 0;  // whether another replica has stopped
  virtual void stop_others() = 0;             // this replica was asked to stop: so shall the others
};

// On rank 0: the requests of the first replica, and all links to the others.
class FrontRequests : public ReplicaRequests {
 public:
  // `links` is null for a single replica, else it must outlive this.
  FrontRequests(std::unique_ptr<SharedRequests> all, ReplicaLinks* links);

  bool is_asked_to_stop() const override { return stopped_; }
  void stop_others() override;

  int64_t waiting() const override { return own_.waiting(); }
  std::optional<Request> next() override { return own_.next(); }
  bool ended() const override { return own_.ended() && (others_.empty() || told_end_); }
  std::vector<int32_t> cancelled() override { return own_.cancelled(); }
  void begun(int32_t sample, int64_t cached) override { own_.begun(sample, cached); }
  void drawn(std::vector<SampleToken> tokens) override { own_.drawn(std::move(tokens)); }
  void stage_seconds(int64_t stage, double busy, double total) override { own_.stage_seconds(stage, busy, total); }
  void caches(int64_t used_slots, int64_t used_pages) override { own_.caches(used_slots, used_pages); }
  void poll() override;  // Error(kLost) if a replica is silent for too long

 private:
  struct Other {
    ReplicaPeer peer;
    RequestSource& source;
  };
  void receive_news(Other& other);
  void send_order(Other& other, bool ended);

  std::unique_ptr<SharedRequests> all_;
  RequestSource& own_;
  ReplicaLinks* links_;
  std::vector<Other> others_;
  bool told_end_ = false;  // all replicas know that no request will come
  bool stopped_ = false;
};

// On the first stage of another replica.
class RemoteRequests : public ReplicaRequests {
 public:
  // `returns_tokens`: rank 0 wants all tokens, not only the ends of samples.
  RemoteRequests(ReplicaLinks& links, bool returns_tokens);

  bool is_asked_to_stop() const override { return stopped_; }
  void stop_others() override;

  int64_t waiting() const override { return std::ssize(requests_); }
  std::optional<Request> next() override;
  bool ended() const override { return ended_ && requests_.empty(); }
  std::vector<int32_t> cancelled() override { return std::exchange(cancelled_, {}); }
  void begun(int32_t sample, int64_t cached) override { news_.begun.emplace_back(sample, cached); }
  void drawn(std::vector<SampleToken> tokens) override;
  void stage_seconds(int64_t stage, double busy, double total) override {
    news_.stage_seconds.push_back({stage, busy, total});
  }
  void caches(int64_t used_slots, int64_t used_pages) override { news_.caches = {used_slots, used_pages}; }
  void poll() override;

 private:
  void send_news() { front_.send(std::exchange(news_, {})); }

  ReplicaLinks& links_;
  ReplicaPeer front_;
  const bool returns_tokens_;
  std::deque<Request> requests_;
  std::vector<int32_t> cancelled_;
  bool ended_ = false, stopped_ = false;
  ReplicaNews news_;
};

}  // namespace lfm2
