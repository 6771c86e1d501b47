// An in-order queue of host work on a thread of its own, and its events. CpuBackend computes on one; channels may own
// others.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "kernels/backend.h"

namespace lfm2 {

// As a CUDA event: record takes a ticket on the calling thread, the stream completes it when it gets there. Outlives
// the work that refers to it.
class CpuEvent final : public Event {
 public:
  bool done() const override;

  uint64_t record();               // the new point, not yet reached
  uint64_t recorded() const;       // the newest point: what a wait refers to
  void complete(uint64_t ticket);  // this point and all before it are reached
  void wait(uint64_t ticket) const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable reached_;
  uint64_t recorded_ = 0, completed_ = 0;
};

// After work has failed, later work and waits are skipped but events still complete, so that nobody waits for ever;
// check() keeps throwing the first error. The destructor runs what is queued: owners of memory that it uses drain the
// stream before.
class CpuStream final : public Stream {
 public:
  CpuStream();
  ~CpuStream() override;
  CpuStream(const CpuStream&) = delete;
  CpuStream& operator=(const CpuStream&) = delete;

  void submit(std::function<void()> work, int64_t tag = kUntagged) override;
  void record(Event& event) override;  // a CpuEvent, as every event of the CPU backend
  void wait(Event& event) override;
  void check() override;
  std::vector<Span> take_finished() override;
  void drain() noexcept override;

 private:
  struct Item {
    std::function<void()> work;
    bool always = false;         // also after an error: completes an event
    std::optional<int64_t> tag;  // submitted work
  };

  void push(Item item);
  void worker_loop();

  std::mutex mutex_;
  std::condition_variable pushed_;
  std::deque<Item> queue_;
  std::exception_ptr error_;
  std::vector<Span> finished_;
  bool stopping_ = false;  // all above are guarded by mutex_
  std::thread worker_;     // last: it uses all of the above
};

}  // namespace lfm2
