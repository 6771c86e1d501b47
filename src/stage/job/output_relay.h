// With replicas, the last stage of the first pipeline writes what all of them compute. Other last stages send it their
// part of the output: completions, or rows that they cannot write into the file themselves. Main threads only, but
// add().
#pragma once

#include <functional>
#include <mutex>
#include <span>
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

  // On the other last stages, on any thread: keeps a part for the next pass().
  template <class Part>
  void add(const Part& part) {
    const std::lock_guard lock(mutex_);
    WordWriter(words_).add(part);
  }
  // Sends what add() kept, or passes on what has arrived. Never waits.
  void pass(const Receive& receive);
  // Waits until few parts are kept, as this rank may compute faster than the first one writes. `poll` calls pass().
  void wait_for_room(const std::function<void()>& poll);
  // Called after the last add() of a run. The first pipeline's rank waits until all other pipelines have ended. This
  // wait needs no deadline, because hangs are detected within each pipeline.
  void end(const Receive& receive);

 private:
  bool receives() const { return rank_ == 0; }
  size_t kept();
  void wait(const std::function<bool()>& done, const std::function<void()>& poll);

  MpiMessages messages_;
  Watchdog& watchdog_;
  int rank_ = 0, others_ = 0, writer_ = 0;
  int ended_ = 0;  // pipelines whose last message of this run has arrived
  std::mutex mutex_;
  std::vector<int32_t> words_;  // guarded by mutex_
  MpiMessages::Incoming incoming_;
};

}  // namespace lfm2
