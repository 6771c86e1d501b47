// Runs a job through one stage: interprets the schedule with two slots, a channel and the backend's compute stream.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/channel.h"
#include "comm/control_link.h"
#include "comm/wait.h"
#include "stage/plan.h"
#include "stage/result_ring.h"
#include "stage/schedule.h"
#include "stage/trace.h"

namespace lfm2 {

// Seconds of one run on this rank. What is left of the total is waiting for the fill, the drain and the host.
struct PipelineTimes {
  double total = 0;
  double busy = 0;       // the compute stream had work and was doing it
  double sending = 0;    // of all sends
  double hidden = 0;     // of those, while the compute stream was busy
  double receiving = 0;  // stood still, and computed nothing, until the next micro-batch had arrived
};

class Pipeline {
 public:
  // `channel` may be null for a single stage; `stages` counts all of them, this one is number `index`. Everything the
  // run needs is allocated here. Through `control` the first stage tells the others whether another micro-batch comes;
  // without it a run of several stages cannot be stopped.
  Pipeline(Backend& backend, const Stage& stage, Channel* channel, int64_t index, int64_t stages, const BatchPlan& plan,
           DType compute, ResultKind kind, Watchdog& watchdog, bool traced = false, ControlLink* control = nullptr);

  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;
  ~Pipeline() { backend_.compute().drain(); }  // the memory below is in use until then

  // One pass over the job. `ids` [tokens of the job] int32, used by the first stage; consumers are used by the last.
  // `on_item` is told after each micro-batch that this stage has passed on, for progress. Once `stop` says so on any
  // stage, no micro-batch is begun any more, and the run ends when those that were are through all stages.
  void run(std::span<const int32_t> ids, const std::vector<ResultConsumer*>& consumers,
           const std::function<void(const MicroBatch&)>& on_item, const std::function<bool()>& stop = {});
  bool finished() const { return finished_; }  // the last run: it was not stopped

  // After an error: returns when no consumer is being called any more, so that they may go.
  void stop_results() {
    if (results_) results_->stop();
  }

  PipelineTimes times() const { return times_; }                   // of the last run
  const std::vector<TraceEvent>& trace() const { return trace_; }  // of the last run; empty unless asked for
  uint64_t activation_bytes() const { return activation_bytes_; }

 private:
  struct Slot {
    Tensor residual;                  // [max_tokens, hidden] act
    Tensor tail;                      // the same for the stage that cuts the tails, else empty
    std::unique_ptr<Event> computed;  // the layers of the item in it are done
    std::unique_ptr<Event> taken;     // last stage: its rows were read by the head
  };

  // What a micro-batch looks like on this stage.
  struct Item {
    Batch batch;       // as it comes in
    Tensor tail_rows;  // of the stage that cuts the tails
    Batch tail;
  };

  Tensor allocate(DType dtype, std::initializer_list<int64_t> dims);
  Tensor upload_indices(const std::vector<int32_t>& values);
  void build_items();
  const MicroBatch& item_of(const Action& action) const { return plan_.items[static_cast<size_t>(action.item)]; }
  Slot& slot_of(const Action& action) { return slots_[static_cast<size_t>(action.slot)]; }
  const Item& shape_of(const Action& action) const { return items_[static_cast<size_t>(action.item)]; }
  Tensor input_of(const Action& action) { return slot_of(action).residual.rows(0, shape_of(action).batch.tokens); }
  Tensor output_of(const Action& action) {
    const Item& item = shape_of(action);
    return cuts_tails_ ? slot_of(action).tail.rows(0, item.tail.tokens) : input_of(action);
  }

  bool goes_on(int64_t item);
  void pass_on_stop();
  void wait_for_free_slot(int slot_index, int64_t previous);
  void forward(const Action& action);
  void give_result(const Action& action);
  double wait(const std::function<bool()>& done, Phase phase, int64_t item, int64_t peer_stage = Place::kNobody);
  void collect_times();
  void trace(TraceKind kind, int64_t item, double start, double end) {
    if (traced_) trace_.push_back({.kind = kind, .item = item, .start = start, .end = end});
  }

  Backend& backend_;
  const Stage& stage_;
  Channel* channel_;
  ControlLink* control_;
  int64_t index_, stages_;
  const BatchPlan& plan_;
  DType compute_;
  ResultKind kind_;
  Watchdog& watchdog_;
  bool traced_;
  int64_t tail_length_ = 0;  // 0: every token goes all the way
  bool cuts_tails_ = false;  // here; a stage behind that one gets tails alone
  std::vector<Action> schedule_;
  Wait waiter_;
  uint64_t activation_bytes_ = 0;

  std::vector<Buffer> buffers_;
  std::array<Slot, kSlots> slots_;
  Tensor ids_;        // [tokens of the job], first stage
  Tensor last_rows_;  // [samples of the job]: each sample's last token within its item, as it goes out
  std::vector<Item> items_;
  Scratch scratch_;
  std::optional<ResultRing> results_;
  std::function<bool()> stop_;
  bool asked_to_stop_ = false, finished_ = false;
  PipelineTimes times_;
  std::vector<Span> computing_, sending_, receiving_;  // of this run; the last: waits for arrivals
  int64_t received_ = 0;                               // items whose arrival is in the trace
  std::vector<TraceEvent> trace_;
};

}  // namespace lfm2
