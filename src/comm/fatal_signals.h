// Says in one line what a rank was doing when a library killed it, where MPI would print a stack instead. MpiChannel
// uses it until MPI has shown that it takes GPU memory.
#pragma once

#include <functional>
#include <string>

namespace lfm2 {

// While it lives, a signal that means a fault (SIGSEGV, SIGBUS, SIGABRT) ends the process with kSoftware, and with the
// line on stderr where `claim` returns true. There is at most one at a time.
class FatalSignals {
 public:
  FatalSignals(const std::string& line, std::function<bool()> claim);
  FatalSignals(const FatalSignals&) = delete;
  FatalSignals& operator=(const FatalSignals&) = delete;
  ~FatalSignals();
};

}  // namespace lfm2
