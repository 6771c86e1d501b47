// From /proc/meminfo.
#include "kernels/cpu/host_memory.h"

#include <cstdio>
#include <memory>

namespace lfm2 {

uint64_t available_host_memory() {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/proc/meminfo", "r"), &std::fclose);
  char line[128];
  unsigned long long kilobytes = 0;
  while (file && std::fgets(line, sizeof line, file.get()) != nullptr)
    if (std::sscanf(line, "MemAvailable: %llu kB", &kilobytes) == 1) return kilobytes * 1024;
  return 0;
}

}  // namespace lfm2
