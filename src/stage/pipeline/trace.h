// The events of a rank and their times, for each micro-batch or step. StageRun collects them, trace_writer writes them.
#pragma once

#include <cstdint>

#include "comm/stamps.h"
#include "kernels/backend.h"

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

}  // namespace lfm2
