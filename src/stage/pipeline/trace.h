// The events of a rank and their times, for each micro-batch or step. StageRun collects them, trace_writer writes them.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "comm/channel.h"
#include "comm/stamps.h"

namespace lfm2 {

enum class TraceKind : uint8_t {
  kCompute,  // the layers, on the device
  kHead,     // final norm, LM head and copies to the host, on the device
  kSend,     // from the end of the computation to the end of the send
  kReceive,  // from posting the receive to the arrival, including the wait for the sender
  kWait,     // the host waited
  kOutput,   // the host passed on results
  kRun       // the whole run
};

struct TraceEvent {
  TraceKind kind = TraceKind::kCompute;
  int64_t unit = 0;               // number of the micro-batch or step
  int64_t piece = 0;              // the rank's piece of layers that computes it
  int buffer = 0;                 // kSend, kReceive: the buffer
  double start = 0, end = 0;      // steady_seconds()
  Phase phase = Phase::kCompute;  // kWait: the phase of the wait
};

// A micro-batch or step, and the rank's piece of layers that computes it.
struct Unit {
  int64_t number = 0, piece = 0;
};

// The events of a run. Does nothing unless the run is traced.
class RunTrace {
 public:
  explicit RunTrace(bool traced) : traced_(traced) {}

  bool traced() const { return traced_; }
  const std::vector<TraceEvent>& events() const { return events_; }
  void clear() { *this = RunTrace(traced_); }

  void add(const TraceEvent& event) {
    if (traced_) events_.push_back(event);
  }
  // A transfer begins. Its event follows when ended() has its times; transfers of each kind end in the order of their
  // begins.
  void sends(Unit unit, int buffer) {
    if (traced_) sending_.push_back({unit, buffer});
  }
  void receives(Unit unit, int buffer) {
    if (traced_) receiving_.push_back({unit, buffer});
  }
  void ended(const Channel::Transfers& transfers);

 private:
  struct Transfer {
    Unit unit;
    int buffer;
  };
  void add_first_of(std::deque<Transfer>& open, TraceKind kind, double start, double end);

  bool traced_;
  std::deque<Transfer> sending_, receiving_;  // those whose end was not seen yet
  double newest_arrival_ = 0;
  std::vector<TraceEvent> events_;
};

}  // namespace lfm2
