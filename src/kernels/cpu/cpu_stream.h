// A queue of work for the host that runs in order on its own thread, and its events. CpuBackend computes on one; a
// channel may own another.
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

// Works like a CUDA event: record() takes a ticket on the calling thread, and the stream completes the ticket when it
// gets there. The event must outlive the work that refers to it.
class CpuEvent final : public Event {
 public:
  bool done() const override;

  uint64_t record();               // takes a ticket for a new point
  uint64_t recorded() const;       // the ticket of the newest point, which a wait refers to
  void complete(uint64_t ticket);  // marks this ticket and all before it as reached
  void wait(uint64_t ticket) const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable reached_;
  uint64_t recorded_ = 0, completed_ = 0;
};

// After work has failed, later work and waits are skipped, but events still complete, so that nobody waits forever;
// check() keeps throwing the first error. The destructor runs what is queued, so an owner of memory that the work uses
// drains the stream first.
class CpuStream final : public Stream {
 public:
  explicit CpuStream(WorkDoneSignal* work_done = nullptr);  // is notified when events are done
  ~CpuStream() override;
  CpuStream(const CpuStream&) = delete;
  CpuStream& operator=(const CpuStream&) = delete;

  void submit(std::function<void()> work, int64_t tag = kUntagged) override;
  void record(Event& event) override;  // `event` is a CpuEvent, as all events of this backend are
  void wait(Event& event) override;
  void check() override;
  std::vector<Span> pop_finished() override;
  void drain() noexcept override;

 private:
  struct Item {
    std::function<void()> work;
    bool always = false;         // runs after an error, too, because it completes an event
    std::optional<int64_t> tag;  // set for submitted work
  };

  void push(Item item);
  void worker_loop();

  WorkDoneSignal* work_done_;
  std::mutex mutex_;
  std::condition_variable pushed_;
  std::deque<Item> queue_;
  std::exception_ptr error_;
  std::vector<Span> finished_;
  bool stopping_ = false;  // mutex_ guards all members from itself to here
  std::thread worker_;     // last, because the thread uses all of the above
};

}  // namespace lfm2
