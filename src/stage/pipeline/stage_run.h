// The common part of Scorer (micro-batches) and Generator (steps) on a stage: waits that name the late rank, the
// request to stop, times, and the trace.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "base/words.h"
#include "comm/channel.h"
#include "comm/control_link.h"
#include "comm/wait.h"
#include "stage/model/stage.h"
#include "stage/pipeline/overlap_clock.h"
#include "stage/pipeline/schedule.h"
#include "stage/pipeline/trace.h"

namespace lfm2 {

// Seconds of one run on this rank. The rest of the total is the host's own work and other waits.
struct StageTimes {
  double total = 0;
  double busy = 0;                     // the compute stream worked
  std::vector<double> busy_with = {};  // [pieces]: the parts of `busy`; final norm and LM head belong to the last piece
  // [pieces][micro-batches]: the parts of busy_with, if the run has at most kMaxTimed micro-batches; else empty.
  std::vector<std::vector<double>> busy_each = {};
  static constexpr int64_t kMaxTimed = 4096;
  double sending = 0;    // sum over all sends
  double hidden = 0;     // the part of `sending` while the compute stream was busy
  double receiving = 0;  // waits for hidden states while the compute stream was idle
};
void for_each_field(MaybeConst<StageTimes> auto& times, const auto& each) {  // see base/words.h
  each(times.total, times.busy, times.busy_with, times.busy_each, times.sending, times.hidden, times.receiving);
}

// What a rank computes and its links to the other ranks of the pipeline.
struct StageLinks {
  Backend& backend;
  std::span<const Stage> pieces;  // one, or several with interleaved stages
  Channel* channel;               // null for a single stage
  ControlLink* control;           // null for a single stage that scores
  int64_t index, stages;          // number of this stage, and number of stages
  Watchdog& watchdog;  // of this rank; ranks of a pipeline are numbered consecutively, in the order of the stages

  bool first() const { return index == 0; }
  bool last() const { return index + 1 == stages; }
  const Stage& stage() const { return pieces.front(); }  // for a rank with one piece
  std::vector<LayerRange> layers() const {               // of each piece
    std::vector<LayerRange> ranges;
    for (const Stage& piece : pieces) ranges.push_back(piece.layers());
    return ranges;
  }
  PipelineShape shape() const { return {.stages = stages, .pieces = std::ssize(pieces)}; }
};

// Seconds between polls on GPUs. A rank with a GPU also has its own CPU core, and the end of device work wakes no
// thread.
inline constexpr double kGpuNap = 100e-6;

enum class RunUnit : uint8_t { kMicroBatch, kStep };

class StageRun {
 public:
  // `unit`: whether the run consists of micro-batches or steps. Every wait calls `look_around` before each test of its
  // condition.
  StageRun(const StageLinks& links, RunUnit unit, bool traced, std::function<void()> look_around, Wait::Pace pace = {});

  void begin(const std::function<bool()>& stop);  // resets the state of the previous run
  void end();                                     // computes times()

  // Returns the seconds waited once `done` returns true. Meanwhile the stamp names `unit`, and the stage `peer_stage`
  // or this rank's device as the one waited for.
  double wait(const std::function<bool()>& done, Phase phase, Unit unit, int64_t peer_stage = RankActivity::kNobody);
  // The same for a rank of the whole job, or kNobody.
  double wait_for_rank(const std::function<bool()>& done, Phase phase, Unit unit, int rank);

  // Start receiving a unit from the previous stage, and sending one to the next stage once `computed` is done.
  void receive(int buffer, const Tensor& into, Unit unit);
  void send(int buffer, const Tensor& from, Event& computed, Unit unit);
  // Returns when the buffer is free: its unit `before` has arrived, is computed, and is sent. It waits for these in
  // turn, so that the watchdog names the late one: the previous stage, this stage's device, or the next stage.
  void wait_for_free_buffer(int buffer, Unit before, const std::function<bool()>& computed);
  // Returns when the buffer's hidden states have arrived. Work submitted after that may read them.
  void wait_for_arrival(int buffer, Unit unit);
  // The tag of work submitted for a unit; `head`: the work is final norm and LM head.
  int64_t tag(Unit unit, bool head) const { return 2 * (unit.number * shape_.pieces + unit.piece) + (head ? 1 : 0); }

  // A signal may reach any rank. Other stages inform the first stage, which decides for all.
  bool first_is_asked_to_stop() const;
  void pass_on_stop();

  void enter(Phase phase, Unit unit) { links_.watchdog.enter(activity(phase, unit)); }
  void collect_times();  // collects work and transfers that ended since the last call
  void trace(TraceKind kind, Unit unit, double start, double end, Phase phase = Phase::kCompute) {
    trace_.add({.kind = kind, .unit = unit.number, .piece = unit.piece, .start = start, .end = end, .phase = phase});
  }
  void trace(TraceKind kind, const Span& span) { trace(kind, unit_of(span.tag), span.start, span.end); }

  StageTimes times() const { return times_; }
  double busy_so_far() const { return times_.busy; }  // of the current run
  double total_so_far() const { return steady_seconds() - start_; }
  const std::vector<TraceEvent>& trace() const { return trace_.events(); }  // empty unless traced

 private:
  RankActivity activity(Phase phase, Unit unit, int peer = RankActivity::kNobody) const {
    return {.phase = phase,
            .unit = unit.number,
            .piece = shape_.pieces > 1 ? static_cast<int32_t>(unit.piece) : -1,
            .step = unit_ == RunUnit::kStep,
            .peer = peer};
  }
  Unit unit_of(int64_t tag) const { return {tag / 2 / shape_.pieces, tag / 2 % shape_.pieces}; }
  // The previous and the next stage, round the ring.
  int64_t previous() const { return (links_.index + links_.stages - 1) % links_.stages; }
  int64_t following() const { return (links_.index + 1) % links_.stages; }
  bool receives(Unit unit) const { return !links_.first() || unit.piece > 0; }
  bool sends(Unit unit) const { return !links_.last() || unit.piece + 1 < shape_.pieces; }
  void add_to_each(Unit unit, double seconds);

  StageLinks links_;
  PipelineShape shape_;
  RunUnit unit_;
  Wait waiter_;
  std::function<bool()> stop_;
  bool passed_on_ = false;
  double start_ = 0;
  StageTimes times_{.busy_with = std::vector<double>(links_.pieces.size())};
  OverlapClock overlaps_;
  RunTrace trace_;
};

}  // namespace lfm2
