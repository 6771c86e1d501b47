// What a rank did when, micro-batch by micro-batch (step by step, where it generates): collected by the pipeline,
// written by trace_writer.
#pragma once

#include <cstdint>

#include "comm/stamps.h"
#include "kernels/backend.h"

namespace lfm2 {

enum class TraceKind : uint8_t {
  kCompute,  // the layers, on the device
  kHead,     // final norm, LM head and copies to the host, on the device
  kSend,     // from "computed" to "gone"
  kReceive,  // from "posted" to "arrived": it may wait for the sender
  kWait,     // the host stood still
  kOutput,   // the host handed results on
  kRun       // the whole of it
};

struct TraceEvent {
  TraceKind kind = TraceKind::kCompute;
  int64_t unit = 0;
  double start = 0, end = 0;      // steady_seconds()
  Phase phase = Phase::kCompute;  // kWait: what for
};

}  // namespace lfm2
