// Runs a job through one stage: interprets the schedule with two buffers, a channel and the backend's compute stream.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/tensor_memory.h"
#include "stage/pipeline/schedule.h"
#include "stage/pipeline/stage_run.h"
#include "stage/scoring/plan.h"
#include "stage/scoring/result_ring.h"

namespace lfm2 {

class Scorer {
 public:
  // Everything the run needs is allocated here.
  Scorer(const StageLinks& links, const BatchPlan& plan, DType compute, ResultKind kind, bool traced = false);

  Scorer(const Scorer&) = delete;
  Scorer& operator=(const Scorer&) = delete;
  ~Scorer() { links_.backend.compute().drain(); }  // the memory below is in use until then

  // One pass over the job. `micro-batches` are used by the first stage and null on the others, which it tells of each
  // one in time; consumers are used by the last. `on_micro-batch` is told after each micro-batch that this stage has
  // passed on, for progress. Once `stop` says so on any stage, no micro-batch is begun any more, and the run ends when
  // those that were are through all stages.
  void run(const MicroBatches* micro_batches, const std::vector<ResultConsumer*>& consumers,
           const std::function<void(const MicroBatch&)>& on_micro_batch, const std::function<bool()>& stop = {});
  bool finished() const { return finished_; }  // the last run: it was not stopped

  // After an error: returns when no consumer is being called any more, so that they may go.
  void stop_results() {
    if (results_) results_->stop();
  }

  StageTimes times() const { return run_.times(); }                      // of the last run
  const std::vector<TraceEvent>& trace() const { return run_.trace(); }  // of the last run; empty unless asked for
  uint64_t activation_bytes() const { return memory_.bytes() + working_bytes_; }

 private:
  // What a micro-batch looks like on this stage, in index arrays: int32, in one piece of memory.
  struct IndexArrays {
    MicroBatch samples;
    Tensor ids;        // [tokens], first stage
    Batch batch;       // as it comes in
    Tensor tail_rows;  // of the stage that cuts the tails
    Batch tail;
    Tensor last_rows;  // [samples]: each one's last token, as it goes out
    size_t bytes = 0;  // of all arrays
  };
  // The micro-batch that begins on this stage.
  struct Next {
    MicroBatch samples;
    std::vector<int32_t> lengths;  // [samples]
  };
  struct StageBuffer {
    Tensor residual;         // [max_tokens, hidden] act
    Tensor tail;             // the same for the stage that cuts the tails, else empty
    Buffer staging, arrays;  // of the micro-batch in it: on the host, on their way to the device; and there
    IndexArrays micro_batch;
    std::unique_ptr<Event> computed;  // the layers of the micro-batch in it are done
    std::unique_ptr<Event> taken;     // last stage: its rows were read by the head
  };

  IndexArrays lay_out(const Next& next, std::byte* memory) const;
  size_t max_array_bytes() const;
  void prepare(StageBuffer& buffer, std::span<const int32_t> ids);
  StageBuffer& buffer_of(const Action& action) { return buffers_[static_cast<size_t>(action.buffer)]; }
  static Tensor input_of(const StageBuffer& buffer) { return buffer.residual.rows(0, buffer.micro_batch.batch.tokens); }
  Tensor output_of(const StageBuffer& buffer) const {
    return cuts_tails_ ? buffer.tail.rows(0, buffer.micro_batch.tail.tokens) : input_of(buffer);
  }
  int64_t kept(int64_t length) const { return std::min(length, tail_length_); }

  bool goes_on(int64_t micro_batch, const MicroBatches* micro_batches);
  void wait_for_free_buffer(int buffer_index, int64_t previous);
  void forward(const Action& action);
  void give_result(const Action& action);
  void collect_times();

  const StageLinks links_;
  const BatchPlan plan_;
  DType compute_;
  ResultKind kind_;
  int64_t tail_length_ = 0;  // 0: every token goes all the way
  bool cuts_tails_ = false;  // here; a stage behind that one gets tails alone
  bool gets_tails_ = false;

  TensorMemory memory_;
  uint64_t working_bytes_ = 0;  // of the scratch and the results
  std::array<StageBuffer, kBuffers> buffers_;
  Scratch scratch_;
  std::optional<ResultRing> results_;
  Next next_;
  bool finished_ = false;
  StageRun run_;
};

}  // namespace lfm2
