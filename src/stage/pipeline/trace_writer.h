// --trace: what all ranks did as one timeline in Chrome's trace event format, which Perfetto, chrome://tracing and
// launch/plot-trace show.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "comm/mpi_world.h"
#include "stage/pipeline/trace.h"

namespace lfm2 {

// One rank's part of it.
struct RankTrace {
  int rank = 0;
  std::string device;
  const char* unit = "micro-batch";  // what an unit is; or "step"
  std::vector<TraceEvent> events;
};

// The rank's events as elements of a JSON list. Times: microseconds from `origin` on, a steady_seconds() of this rank.
std::string events_text(const RankTrace& trace, int ranks, double origin);

// Collective: rank 0 writes the events of all ranks, on its own clock. Error(kCantCreate, kIo) as AtomicFile.
void write_trace(const MpiGroup& group, const RankTrace& trace, const std::filesystem::path& path,
                 double timeout_seconds);

}  // namespace lfm2
