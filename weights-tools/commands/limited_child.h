// Work on files from strangers, done in a process that can do little harm when it goes wrong.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace lfm2 {

struct ChildLimits {
  uint64_t memory_bytes = uint64_t{1} << 30;  // of address space; not under AddressSanitizer, which maps terabytes
  uint64_t cpu_seconds = 60, wall_seconds = 120;
  uint64_t open_files = 1024;
  bool progress = false;  // it may write to standard error
};

// Calls `work` in a forked process under these limits and returns what it returned, control characters escaped. The
// process has no core, no further processes and no writable files; on Linux for x86-64 and arm64, a filter leaves it
// only the system calls of a reader, without signals to others: Error(kUnavailable) where the kernel refuses the
// filter. An Error of `work` is thrown here, a system_error as Error(kIo). Where the process dies, exceeds a limit,
// lives on after its answer or answers nonsense: Error(kData), beginning with `what`. Call it from a process with one
// thread.
std::string run_limited(const std::string& what, const ChildLimits& limits, const std::function<std::string()>& work);

}  // namespace lfm2
