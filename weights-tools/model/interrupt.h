// Ctrl-C and termination requests, so that long work can take back its temporary files.
#pragma once

namespace lfm2 {

// From now on SIGINT, SIGTERM and SIGHUP are remembered instead of ending the process; a second one ends it at once.
void catch_interrupts();

// Error(kStopped) where one came.
void throw_if_interrupted();

}  // namespace lfm2
