// The overlap of a stage's transfers with its computation. StageRun owns one.
#pragma once

#include <cstddef>
#include <deque>

#include "kernels/backend.h"

namespace lfm2 {

// Measures how much of the sends and of the waits for arrivals overlapped with computation. Spans of each kind must be
// added in the order of their ends. Only the newest spans are kept, so a run may have any length.
class OverlapClock {
 public:
  void computed(const Span& span);
  void sent(const Span& span) { add(sending_, span); }
  void waited(const Span& span) { add(waiting_, span); }
  void finish();  // called after all spans were added

  double hidden_sending() const { return sending_.hidden; }
  double waiting() const { return waiting_.total; }
  double hidden_waiting() const { return waiting_.hidden; }
  size_t kept() const { return computing_.size() + sending_.open.size() + waiting_.open.size(); }

 private:
  struct Spans {
    std::deque<Span> open;  // spans that may overlap with a computation not added yet
    double total = 0, hidden = 0;
  };
  // A span is compared with the computations after kOpen later spans of its kind. By then both buffers of the stage
  // were reused, so every computation that began before the end of the span has ended.
  static constexpr size_t kOpen = 64, kComputed = 1024;

  void add(Spans& spans, const Span& span);
  void close_oldest(Spans& spans);

  std::deque<Span> computing_;
  Spans sending_, waiting_;
};

}  // namespace lfm2
