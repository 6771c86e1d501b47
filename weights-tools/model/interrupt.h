// Ends long work of weights-tools after a signal, so that its temporary files are removed.
#pragma once

#include "base/error.h"
#include "base/stop.h"

namespace lfm2 {

// Error(kStopped) after a signal that catch_interrupts() catches.
inline void throw_if_interrupted() {
  if (stop_requested())
    throw Error(ExitCode::kStopped, fmt::format("stopped by signal {}, nothing was written", stop_signal()));
}

}  // namespace lfm2
