// With replicas, the last stage of the first pipeline writes what all of them compute. Other last stages send it their
// part of the output: completions, or rows that they cannot write into the file themselves. Main threads only, but
// add() and wait_until_sent().
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <vector>

#include "base/words.h"
#include "comm/mpi_messages.h"

namespace lfm2 {

class OutputRelay {
 public:
  // On the first pipeline's rank: gets each part that has arrived.
  using Receive = std::function<void(WordReader& part)>;

  // Collective over the last stages, in the order of their pipelines. `writer`: the first one's number in the job.
  OutputRelay(const MpiGroup& last_stages, int writer);

  // On the other last stages, on any thread: keeps a part for later calls of pass(). A message has several small parts,
  // and at most one part more than kMessageWords.
  template <class Part>
  void add(const Part& part) {
    const std::lock_guard lock(mutex_);
    if (kept_.empty() || kept_.back().size() >= kMessageWords) kept_.emplace_back();
    WordWriter(kept_.back()).add(part);
  }
  // Before add(), on another thread than the main one, which calls pass() meanwhile: waits until few messages are kept,
  // as this rank may compute faster than the first one writes.
  void wait_until_sent();
  // The same on the main thread. `poll` calls pass().
  void wait_for_room(const std::function<void()>& poll);
  // Sends a message that add() made, or passes on a few messages that have arrived. Never waits.
  void pass(const Receive& receive);
  // Called after the last add() of a run. The first pipeline's rank waits until all other pipelines have ended. This
  // wait needs no deadline, because hangs are detected within each pipeline.
  void end(const Receive& receive);
  void stop();  // after an error: ends wait_until_sent()

 private:
  static constexpr size_t kMessageWords = size_t{1} << 20;  // 4 MiB

  bool receives() const { return rank_ == 0; }
  bool has_room() const;  // under the lock
  bool all_sent();
  void wait(const std::function<bool()>& done, const std::function<void()>& poll);

  MpiMessages messages_;
  Watchdog& watchdog_;
  int rank_ = 0, others_ = 0, writer_ = 0;
  int ended_ = 0;  // pipelines whose last message of this run has arrived
  std::mutex mutex_;
  std::condition_variable sent_;
  std::deque<std::vector<int32_t>> kept_;  // messages; guarded by mutex_
  bool stopped_ = false;                   // guarded by mutex_
  MpiMessages::Incoming incoming_;
};

}  // namespace lfm2
