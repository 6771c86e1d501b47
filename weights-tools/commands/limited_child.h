// Runs work on untrusted files in a child process with few rights.
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

// Calls `work` in a forked process under these limits and returns its text, with control characters escaped. The
// process can write no core dump and no files, and start no processes. On Linux for x86-64 and arm64 a filter allows
// only the system calls of a reader, and no signals to other processes; Error(kUnavailable) if the kernel refuses the
// filter. An Error of `work` is rethrown here, a system_error as Error(kIo). Error(kData), beginning with `what`, if
// the process dies, exceeds a limit, stays alive after its answer, or answers in a wrong form. The calling process must
// have one thread.
std::string run_limited(const std::string& what, const ChildLimits& limits, const std::function<std::string()>& work);

}  // namespace lfm2
