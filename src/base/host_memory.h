// How much more memory this process may allocate on its host.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace lfm2 {

// The bytes that can be allocated now, reclaimable page cache included, within the limits of this process's control
// groups. 0 if the system does not report them.
uint64_t available_host_memory();

// The fewest bytes that any of the control groups named in `membership` (/proc/self/cgroup) has left; nothing if no
// group has a limit. Control groups are mounted at `mount` (/sys/fs/cgroup).
std::optional<uint64_t> control_group_headroom(const std::filesystem::path& membership,
                                               const std::filesystem::path& mount);

}  // namespace lfm2
