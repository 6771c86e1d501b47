// Work on untrusted files, in a process that can do little harm when it goes wrong.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace lfm2 {

struct ChildLimits {
  // Address space; not limited under AddressSanitizer, which maps terabytes.
  uint64_t memory_bytes = uint64_t{1} << 30;
  uint64_t cpu_seconds = 60, wall_seconds = 120;
  uint64_t open_files = 1024;
  bool progress = false;  // whether the child may write to standard error
};

// Calls `work` in a forked process under these limits and returns the text that it returned, with control characters
// escaped. The process has no core dump, no further processes and no writable files. On Linux for x86-64 and arm64 a
// filter leaves it only the system calls of a reader, without signals to others: Error(kUnavailable) where the kernel
// refuses the filter. An Error of `work` is thrown here, a system_error as Error(kIo). Error(kData), beginning with
// `what`, where the process dies, exceeds a limit, lives on after its answer or answers nonsense. The caller's process
// must have one thread.
std::string run_limited(const std::string& what, const ChildLimits& limits, const std::function<std::string()>& work);

}  // namespace lfm2
