// What each rank did when, micro-batch by micro-batch (step by step, where it generates): collected by the pipeline,
// written by --trace as one timeline in Chrome's trace event format, which Perfetto, chrome://tracing and
// launch/plot-trace show.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "comm/mpi_world.h"
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
  int64_t item = 0;
  double start = 0, end = 0;      // steady_seconds()
  Phase phase = Phase::kCompute;  // kWait: what for
};

// One rank's part of it.
struct RankTrace {
  int rank = 0;
  std::string device;
  const char* unit = "micro-batch";  // what an item is; or "step"
  std::vector<TraceEvent> events;
};

// The rank's events as elements of a JSON list. Times: microseconds from `origin` on, a steady_seconds() of this rank.
std::string events_text(const RankTrace& trace, int ranks, double origin);

// Collective: rank 0 writes the events of all ranks, on its own clock. Error(kCantCreate, kIo) as AtomicFile.
void write_trace(const MpiGroup& group, const RankTrace& trace, const std::filesystem::path& path,
                 double timeout_seconds);

}  // namespace lfm2
