// What a run of micro-batches (Scorer) and one of steps (Generator) have in common on a stage: waits that name who is
// late, the signal to stop on its way to the first stage, times, and the trace.
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

// Seconds of one run on this rank. What is left of the total is waiting for the fill, the drain and the host.
struct StageTimes {
  double total = 0;
  double busy = 0;       // the compute stream had work and was doing it
  double sending = 0;    // of all sends
  double hidden = 0;     // of those, while the compute stream was busy
  double receiving = 0;  // stood still, and computed nothing, until the next unit had arrived
};

// How much of the sends, and of the waits for arrivals, lay under the stage's own computation. Spans come in the order
// of their ends, each kind for itself; of a run of any length only the last ones are kept.
class OverlapClock {
 public:
  void computed(const Span& span);
  void sent(const Span& span) { add(sending_, span); }
  void waited(const Span& span) { add(waiting_, span); }
  void finish();  // everything has been told

  double hidden_sending() const { return sending_.hidden; }
  double waiting() const { return waiting_.total; }
  double hidden_waiting() const { return waiting_.hidden; }
  size_t kept() const { return computing_.size() + sending_.open.size() + waiting_.open.size(); }

 private:
  struct Spans {
    std::deque<Span> open;  // computations that lie under them may still be going on
    double total = 0, hidden = 0;
  };
  // A span is compared with what was computed until so many others have followed it: by then the two buffers of the
  // stage have been through, and no computation that began before it can still be going on.
  static constexpr size_t kOpen = 64, kComputed = 1024;

  void add(Spans& spans, const Span& span);
  void close_oldest(Spans& spans);

  std::deque<Span> computing_;
  Spans sending_, waiting_;
};

// The host's part of the pipeline around one stage.
struct StageLinks {
  Backend& backend;
  const Stage& stage;
  Channel* channel;       // null: a single stage
  ControlLink* control;   // null: a single stage
  int64_t index, stages;  // this one's number, and how many there are
  Watchdog& watchdog;     // of this rank; those of the stages are in the stages' order
};

enum class RunUnit : uint8_t { kMicroBatch, kStep };

class StageRun {
 public:
  // `unit`: what the run is made of. `look_around` is called in every wait, before each look at its condition.
  StageRun(const StageLinks& links, RunUnit unit, bool traced, std::function<void()> look_around,
           double eager_seconds = Wait::kEagerSeconds);

  void begin(const std::function<bool()>& stop);  // forgets the run before
  void end();                                     // sums up

  // Seconds until `done` is true. This rank is at `unit` and waits for its own machine (nobody) or for a stage.
  double wait(const std::function<bool()>& done, Phase phase, int64_t unit, int64_t peer_stage = Place::kNobody);
  // Until `computed`, and until nothing of the unit that was in the buffer is on its way any more. In steps, so that a
  // stall is blamed on whoever is late: the stage before, this one's device, the stage behind.
  void wait_for_free_buffer(int buffer, int64_t previous, const std::function<bool()>& computed);
  // Until the hidden states posted for the buffer are there; what is submitted from here on may read them.
  void wait_for_arrival(int buffer, int64_t unit);

  // A signal may reach any of the ranks: the first stage knows of all of them, the others tell it.
  bool first_is_asked_to_stop() const;
  void pass_on_stop();

  void enter(Phase phase, int64_t unit) { links_.watchdog.enter(place(phase, unit)); }
  void collect_times();  // of what has ended on the device and on the channel since the last call
  void trace(TraceKind kind, int64_t unit, double start, double end, Phase phase = Phase::kCompute) {
    if (traced_) trace_.push_back({kind, unit, start, end, phase});
  }

  StageTimes times() const { return times_; }
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
  int64_t sends_ = 0;     // that have ended
  int64_t received_ = 0;  // units whose arrival is in the trace
  std::vector<TraceEvent> trace_;
};

}  // namespace lfm2
