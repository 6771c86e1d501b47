// Where the first stage of a pipeline gets its micro-batches. Rank 0 has the micro-batches of the job. With replicas it
// sends each the next one when the replica begins the one before, so samples go to whoever is free. Main threads only.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "stage/pipeline/replica_link.h"
#include "stage/scoring/plan.h"

namespace lfm2 {

class BatchSource {
 public:
  virtual ~BatchSource() = default;
  // Whether next() knows what follows. It always does in the middle of a sample in parts.
  virtual bool ready() = 0;
  virtual std::optional<MicroBatchContent> next() = 0;     // none: no further micro-batch follows
  virtual void passed_on(int64_t /*samples*/) {}           // for the progress of all replicas
  virtual bool is_asked_to_stop() const { return false; }  // whether another replica has stopped
  virtual void poll() {}                                   // called in every wait of the run
  // Called after the run. `stop`: whether this replica was asked to stop, and so shall be the others. Rank 0 calls both
  // functions until all replicas have ended.
  virtual void end(const std::function<bool()>& /*stop*/, Watchdog&, const std::function<void()>& /*poll*/) {}
};

// From rank 0 to the first stage of another replica.
struct BatchOrder {
  std::vector<MicroBatchContent> batches = {};
  bool ended = false, stop = false;  // none will come; none shall begin any more
};
void for_each_field(MaybeConst<BatchOrder> auto& order, const auto& each) {  // see base/words.h
  each(order.batches, order.ended, order.stop);
}

// Back to rank 0, since the last message.
struct BatchNews {
  bool begun = false;     // the last micro-batch of the last order
  int64_t passed_on = 0;  // samples
  bool stopped = false, ended = false;
};
void for_each_field(MaybeConst<BatchNews> auto& news, const auto& each) {
  each(news.begun, news.passed_on, news.stopped, news.ended);
}

// On rank 0.
class FrontBatches : public BatchSource {
 public:
  // With several pipelines: all micro-batches from one that follows an `end` up to the next `end` go to one pipeline.
  // `on_passed_on` gets the numbers of samples that other replicas passed on.
  struct Sharing {
    ReplicaLinks& links;
    std::function<bool(const MicroBatch&)> is_end;
    std::function<void(int64_t)> on_passed_on;
  };
  // `all` must outlive this.
  explicit FrontBatches(const MicroBatches& all, std::optional<Sharing> sharing = {});

  bool ready() override { return true; }
  std::optional<MicroBatchContent> next() override;
  bool is_asked_to_stop() const override { return stopped_; }
  void poll() override;
  void end(const std::function<bool()>& stop, Watchdog& watchdog, const std::function<void()>& poll) override;

 private:
  struct Other {
    ReplicaPeer peer;
    // `waits`: it has begun all that it has. `told_end`: it knows that none will come.
    bool waits = true, told_end = false, ended = false;
  };
  std::vector<MicroBatchContent> deal();
  void send_order(Other& other);
  void stop_others();

  const MicroBatches& all_;
  std::optional<Sharing> sharing_;
  int64_t next_ = 0;                   // the first micro-batch that no pipeline has
  std::deque<MicroBatchContent> own_;  // of this pipeline, not begun yet
  std::vector<Other> others_;
  bool stopped_ = false;
};

// On the first stage of another replica.
class RemoteBatches : public BatchSource {
 public:
  explicit RemoteBatches(ReplicaLinks& links) : links_(links), front_(links, 0) {}

  bool ready() override;
  std::optional<MicroBatchContent> next() override;
  void passed_on(int64_t samples) override { news_.passed_on += samples; }
  bool is_asked_to_stop() const override { return stopped_; }
  void poll() override;
  void end(const std::function<bool()>& stop, Watchdog& watchdog, const std::function<void()>& poll) override;

 private:
  ReplicaLinks& links_;
  ReplicaPeer front_;
  std::deque<MicroBatchContent> batches_;
  bool ended_ = false, stopped_ = false;
  BatchNews news_;
};

}  // namespace lfm2
