// --trace: writes the events of all ranks as one timeline in Chrome's trace event format, for Perfetto,
// chrome://tracing and launch/plot-trace.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "comm/mpi_world.h"
#include "stage/pipeline/schedule.h"
#include "stage/pipeline/trace.h"

namespace lfm2 {

// The events of one rank.
struct RankTrace {
  int rank = 0;
  std::string device;
  const char* unit = "micro-batch";  // what TraceEvent::unit counts: "micro-batch" or "step"
  PipelineShape shape;               // of the rank's pipeline
  std::vector<TraceEvent> events;
};

// The rank's events as elements of a JSON list, without its brackets. Times are microseconds since `origin`, a
// steady_seconds() of this rank.
std::string events_text(const RankTrace& trace, int ranks, double origin);

// Rank 0 writes the events of all ranks, in the time of its own clock. Collective. Errors as of AtomicFile:
// kCantCreate, kIo.
void write_trace(const MpiGroup& group, const RankTrace& trace, const std::filesystem::path& path,
                 double timeout_seconds);

}  // namespace lfm2
