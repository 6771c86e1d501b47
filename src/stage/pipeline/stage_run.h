// What Scorer (micro-batches) and Generator (steps) have in common on a stage: waits that name the rank that is late,
// passing the wish to stop to the first stage, times, and the trace.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "comm/channel.h"
#include "comm/control_link.h"
#include "comm/wait.h"
#include "stage/model/stage.h"
#include "stage/pipeline/trace.h"

namespace lfm2 {

// Seconds of one run on this rank. The rest of the total is the host's own work, and waits that belong to none of
// these.
struct StageTimes {
  double total = 0;
  double busy = 0;       // the compute stream was working
  double sending = 0;    // sum over all sends
  double hidden = 0;     // the part of `sending` during which the compute stream was busy
  double receiving = 0;  // waited for hidden states to arrive, while the compute stream was not busy
};

// Measures how much of the sends, and of the waits for arrivals, happened while the stage was computing. Spans of each
// kind must come in the order of their ends. Only the newest spans are kept, so a run may have any length.
class OverlapClock {
 public:
  void computed(const Span& span);
  void sent(const Span& span) { add(sending_, span); }
  void waited(const Span& span) { add(waiting_, span); }
  void finish();  // to be called when all spans were given

  double hidden_sending() const { return sending_.hidden; }
  double waiting() const { return waiting_.total; }
  double hidden_waiting() const { return waiting_.hidden; }
  size_t kept() const { return computing_.size() + sending_.open.size() + waiting_.open.size(); }

 private:
  struct Spans {
    std::deque<Span> open;  // spans during which a computation may run that is not known yet
    double total = 0, hidden = 0;
  };
  // A span is compared with the computations when this many others of its kind have followed it: by then both buffers
  // of the stage were used again, so every computation that began before the end of the span has ended.
  static constexpr size_t kOpen = 64, kComputed = 1024;

  void add(Spans& spans, const Span& span);
  void close_oldest(Spans& spans);

  std::deque<Span> computing_;
  Spans sending_, waiting_;
};

// The stage and its links to the other stages of the pipeline.
struct StageLinks {
  Backend& backend;
  const Stage& stage;
  Channel* channel;       // null for a single stage
  ControlLink* control;   // null for a single stage that scores
  int64_t index, stages;  // number of this stage, and number of stages
  Watchdog& watchdog;     // of this rank; the pipeline's ranks have consecutive numbers, in the order of the stages
};

enum class RunUnit : uint8_t { kMicroBatch, kStep };

class StageRun {
 public:
  // `unit` says what the run consists of. `look_around` is called in every wait, each time before its condition is
  // tested.
  StageRun(const StageLinks& links, RunUnit unit, bool traced, std::function<void()> look_around,
           double eager_seconds = Wait::kEagerSeconds);

  void begin(const std::function<bool()>& stop);  // forgets the run before
  void end();                                     // computes times()

  // Returns when `done` returns true, with the seconds that it took. Meanwhile the stamp says that this rank is at
  // `unit` and waits for its own device, or for the stage `peer_stage`.
  double wait(const std::function<bool()>& done, Phase phase, int64_t unit, int64_t peer_stage = Place::kNobody);
  // Returns when the buffer is free: the unit `previous`, which was in it, is computed and no longer being received or
  // sent. The parts are waited for one after the other, so that the watchdog names whoever is late: the stage before,
  // the device of this one, or the stage behind.
  void wait_for_free_buffer(int buffer, int64_t previous, const std::function<bool()>& computed);
  // Returns when the hidden states that the buffer receives have arrived. Work that is submitted after that may read
  // them.
  void wait_for_arrival(int buffer, int64_t unit);

  // A signal may reach any rank. The others tell the first stage, which decides for all.
  bool first_is_asked_to_stop() const;
  void pass_on_stop();

  void enter(Phase phase, int64_t unit) { links_.watchdog.enter(place(phase, unit)); }
  void collect_times();  // notes work and transfers that ended since the last call
  void trace(TraceKind kind, int64_t unit, double start, double end, Phase phase = Phase::kCompute) {
    if (traced_) trace_.push_back({kind, unit, start, end, phase});
  }

  StageTimes times() const { return times_; }
  double busy_so_far() const { return times_.busy; }  // of the current run
  double total_so_far() const { return steady_seconds() - start_; }
  const std::vector<TraceEvent>& trace() const { return trace_; }  // empty unless traced

 private:
  Place place(Phase phase, int64_t unit, int peer = Place::kNobody) const {
    return {.phase = phase, .unit = unit, .step = unit_ == RunUnit::kStep, .peer = peer};
  }

  StageLinks links_;
  RunUnit unit_;
  bool traced_;
  Wait waiter_;
  std::function<bool()> stop_;
  bool passed_on_ = false;
  double start_ = 0;
  StageTimes times_;
  OverlapClock overlaps_;
  int64_t sends_ = 0;     // number of sends that have ended
  int64_t received_ = 0;  // number of units whose arrival was noted
  std::vector<TraceEvent> trace_;
};

}  // namespace lfm2
