// Reads /proc/meminfo, and the memory controller of control groups, versions 1 and 2.
#include "base/host_memory.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "base/control_groups.h"

namespace lfm2 {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kNoLimit = uint64_t{1} << 60;  // larger values mean no limit; version 1 has almost 2^63

// The number after `key` in a file of lines "key number"; without a key, the number at the beginning of the file.
std::optional<uint64_t> read_number(const fs::path& path, const std::string& key = "") {
  std::ifstream file(path);
  for (std::string word; !key.empty() && file >> word;)
    if (word == key) break;
  if (uint64_t value = 0; file >> value) return value;
  return std::nullopt;  // the file may also contain "max"
}

struct Files {
  const char *limit, *used, *reclaimable;
};
constexpr Files kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr Files kVersion2{"memory.max", "memory.current", "inactive_file"};

std::optional<uint64_t> headroom(const fs::path& group, const Files& files) {
  const std::optional<uint64_t> limit = read_number(group / files.limit);
  if (!limit || *limit >= kNoLimit) return std::nullopt;
  const uint64_t used = read_number(group / files.used).value_or(0);
  const uint64_t cached = read_number(group / "memory.stat", files.reclaimable).value_or(0);
  const uint64_t held = used - std::min(used, cached);
  return *limit - std::min(*limit, held);
}

}  // namespace

std::optional<uint64_t> control_group_headroom(const fs::path& membership, const fs::path& mount) {
  std::optional<uint64_t> least;
  for (const ControlGroup& group : control_groups(membership, mount, "memory"))
    if (const auto found = headroom(group.folder, group.version2 ? kVersion2 : kVersion1))
      least = std::min(*found, least.value_or(*found));
  return least;
}

uint64_t available_host_memory() {
  const uint64_t host = read_number("/proc/meminfo", "MemAvailable:").value_or(0) * 1024;
  const auto group = control_group_headroom("/proc/self/cgroup", "/sys/fs/cgroup");
  return host > 0 ? std::min(host, group.value_or(host)) : group.value_or(0);
}

}  // namespace lfm2
