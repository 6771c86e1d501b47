// With replicas, the last stage of the first pipeline writes the completions of all pipelines. The other last stages
// send it theirs after each step.
#pragma once

#include <vector>

#include "comm/mpi_messages.h"
#include "stage/pipeline/completion.h"

namespace lfm2 {

class CompletionRelay : public CompletionConsumer {
 public:
  // Collective over the last stages, in the order of their pipelines.
  explicit CompletionRelay(const MpiGroup& last_stages);

  // On the other last stages: keeps the completion for the next pass().
  void consume(const Completion& completion) override;
  // After each step. Sends the completions that consume() kept, or passes those that have arrived to `writer`, which
  // only the first pipeline's rank has. Never waits.
  void pass(CompletionConsumer* writer);
  // Called after the last step of this rank's pipeline. The first rank waits until the other pipelines have ended, and
  // passes their completions to `writer`. This wait needs no deadline, because hangs are detected within each pipeline.
  void end(CompletionConsumer* writer);

 private:
  bool receives() const { return rank_ == 0; }

  MpiMessages messages_;
  Watchdog& watchdog_;
  int rank_ = 0, others_ = 0;
  int ended_ = 0;  // pipelines whose last message of this run has arrived
  std::vector<int32_t> words_;
  MpiMessages::Incoming incoming_;
};

}  // namespace lfm2
